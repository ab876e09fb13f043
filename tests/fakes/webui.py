"""A WebUI that behaves as the real one (AUTOMATIC1111 v1.10.1) was seen to: it answers 200 to
nearly anything, renders something else, and says so in `info` alone. With levers for bad days.

On its own: `python -m tests.fakes.webui 7860`.
"""

from __future__ import annotations

import base64
import io
import json
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from PIL import ImageFilter
from PIL.Image import Image, Resampling

from corral.runtime.pipeline.webui.turn import Turn
from tests.eventually import PATIENCE_S
from tests.fakes.webui_parts import (
    BITES,
    DEFAULTS,
    DETECTORS,
    FORGE,
    LATENT,
    LORAS,
    NOT_LOADED,
    OLD_SAMPLERS,
    SAMPLERS,
    SCHEDULES,
    TITLES,
    UPSCALERS,
    VAES,
    Died,
    Json,
    Refusal,
    blended,
    decoded,
    detail_of,
    digest_of,
    drawn,
    grown,
    sampler_and_schedule,
)


class FakeWebUI:
    def __init__(self, port: int = 0) -> None:
        self.step_s = 0.0
        self.load_s = 0.0
        self.settle_s = 0.0
        """Between the beginning of a job and its first step."""
        self.vram_pixels = 0
        """More than this in one pass, and the card has no memory left. 0: any."""
        self.auth: tuple[str, str] | None = None
        self.api = True
        """Off: its pages are there, and nothing else. So it is for a while when it starts."""
        self.detailer = True
        self.forge = False
        """It is a Forge: VAEs are modules, and the second pass has a cfg scale of its own."""
        self.old = False
        """It is from before 1.9, and has no schedules."""
        self.hashes = True
        self.grid = False
        """A grid comes first, whatever a request says."""
        self.die_at = -1
        """The process ends at this step."""
        self.frozen = threading.Event()
        """Set: it takes connections and never answers."""
        self.held = 0
        """Requests that came while it was frozen."""
        self.twist: Callable[[Json], object] = lambda body: None
        """Changes a request before it is looked at, as a bug or an extension would."""
        self.unwinds: threading.Event | None = None
        """An interrupted request keeps its overrides in force until then; it takes seconds."""
        self.forgets_interrupts = 0
        """As many come before the job has begun."""
        self.tells: Callable[[Json], object] = lambda info: None
        """Changes what it says of itself."""
        self.more_images = 0
        """As many of an extension's own come behind those of the request."""
        self.adds_to_prompt = ""
        self.sends = ""
        """The format of its images, whatever was set."""
        self.broken = ""
        """Every generation fails with this message."""
        self.config: Json = {"sd_model_checkpoint": self.title(TITLES[0]), "samples_format": "png"}
        """What stands in its configuration file."""
        self.unseen: set[str] = set()
        """Models that came after it last looked."""
        self.lost_loras: set[str] = set()
        """Listed, and not loaded."""
        self.requests: list[tuple[str, Json]] = []
        self.turned_away = 0
        self.previews = 0
        self.interrupts = 0
        self.most_at_once = 0
        self.loads: list[str] = []
        self._loaded = TITLES[0]
        self._vae: str | None = None
        self._at_once = 0
        self.queue = threading.Lock()
        """Held by whatever it does; only images count as a job."""
        self._counting = threading.Lock()
        self._dying = threading.Lock()
        self._state: Json = {
            "job_count": 0, "job_no": 0, "sampling_step": 0, "sampling_steps": 0,
            "interrupted": False, "skipped": False, "job_timestamp": "0",
        }  # fmt: skip
        self.port = port
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.over = threading.Event()
        self.stepped = threading.Event()
        """A step is done."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def title(self, name: str) -> str:
        return f"{name} [{digest_of(name)[:10]}]" if self.hashes else name

    @property
    def _defaults(self) -> Json:
        return {**DEFAULTS, **FORGE} if self.forge else DEFAULTS

    # -- being a process ----------------------------------------------------------------------

    def start(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def setup(self) -> None:
                super().setup()
                fake._open.add(self.connection)

            def finish(self) -> None:
                fake._open.discard(self.connection)
                with suppress(OSError, ValueError):
                    super().finish()

            def do_GET(self) -> None:
                fake._handle(self, {})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                fake._handle(self, json.loads(self.rfile.read(length) or b"{}") or {})

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                return

        self._server = Quiet(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Every connection closes without an answer, and nobody listens any more."""
        with self._dying:
            server, self._server = self._server, None
            self.over.set()
            if server is not None:
                server.shutdown()
                server.server_close()
            for connection in list(self._open):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def restart(self) -> None:
        self.die()
        self.die_at = -1
        self.over = threading.Event()
        self.queue = threading.Lock()
        self._state |= {"job_count": 0, "sampling_step": 0, "sampling_steps": 0}
        self.start()

    def __enter__(self) -> FakeWebUI:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Also what its users wrote about whose turn it is."""
        self.frozen.clear()
        self.die()
        Path(Turn(self.url)._path).unlink(missing_ok=True)

    # -- HTTP ---------------------------------------------------------------------------------

    def _handle(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        over, began = self.over, time.perf_counter()
        self.held += self.frozen.is_set()
        while self.frozen.is_set() and not over.wait(0.01):
            pass
        if over.is_set():
            return
        parts = urlsplit(handler.path)
        status, answer = 200, None
        try:
            self._admit(handler.headers.get("Authorization", ""))
            answer = self._route(parts.path, handler.command, body, parse_qs(parts.query))
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body
        except Died:
            threading.Thread(target=self.die, daemon=True).start()
            over.wait()
            return
        data = json.dumps(answer).encode()
        with suppress(OSError):  # a client that is gone changes nothing
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(data)))
            handler.send_header("X-Process-Time", f"{time.perf_counter() - began:.4f}")
            handler.end_headers()
            handler.wfile.write(data)

    def _admit(self, given: str) -> None:
        if self.auth is None:
            return
        wanted = base64.b64encode(":".join(self.auth).encode()).decode()
        if given != f"Basic {wanted}":  # and no WWW-Authenticate
            self.turned_away += 1
            raise Refusal(401, "HTTPException", "", "Incorrect username or password")

    def _route(self, path: str, method: str, body: Json, query: dict[str, list[str]]) -> Any:
        self.requests.append((path.removeprefix("/sdapi/v1/"), body))
        if path == "/adetailer/v1/ad_model" and self.detailer:
            return {"ad_model": DETECTORS}
        routes: dict[str, Callable[[], Any]] = {
            "GET sd-models": self._models,
            f"GET {'sd-modules' if self.forge else 'sd-vae'}": lambda: [
                {"model_name": n, "filename": f"/vae/{n}"} for n in VAES
            ],
            "GET samplers": lambda: OLD_SAMPLERS if self.old else SAMPLERS,
            "GET upscalers": self._upscalers,
            "GET latent-upscale-modes": lambda: [{"name": name} for name in LATENT],
            "GET loras": self._loras,
            "GET scripts": self._scripts,
            "GET options": self._options,
            "POST options": lambda: self._set_options(body),
            "POST refresh-checkpoints": self._refresh,
            "GET progress": lambda: self._progress(query),
            "POST interrupt": self._interrupt,
            "POST skip": lambda: self._state.update(skipped=True),
            "POST txt2img": lambda: self._generate("txt2img", body),
            "POST img2img": lambda: self._generate("img2img", body),
            "POST extra-single-image": lambda: self._extra(body),
        }
        if not self.old:
            routes["GET schedulers"] = lambda: SCHEDULES
        found = routes.get(f"{method} {path.removeprefix('/sdapi/v1/')}")
        if found is None or not self.api:
            raise Refusal(404, "HTTPException", "", "Not Found")
        return found()

    def _models(self) -> list[Json]:
        return [
            {
                "title": self.title(name),
                "model_name": name.replace("/", "_").removesuffix(".safetensors"),
                "hash": digest_of(name)[:10] if self.hashes else None,
                "sha256": digest_of(name) if self.hashes else None,
                "filename": f"/models/{name}",
            }
            for name in TITLES
            if name not in self.unseen
        ]

    def _upscalers(self) -> list[Json]:
        plain = dict.fromkeys(("None", "Lanczos", "Nearest"))
        return [
            {
                "name": name, "model_name": None, "model_url": None, "scale": 4,
                "model_path": {**plain, **NOT_LOADED}.get(name, f"/up/{name}.pth"),
            }
            for name in UPSCALERS
        ]  # fmt: skip

    def _refresh(self) -> None:
        with self.queue:
            self.unseen.clear()

    def _loras(self) -> list[Json]:
        """With whatever training wrote into the files; `alias` is from there too."""
        return [
            {"name": n, "alias": alias, "path": f"/l/{n}.pt", "metadata": {"tags": "x" * 20_000}}
            for n, alias in zip(LORAS, reversed(LORAS), strict=True)
        ]

    def _scripts(self) -> Json:
        names = ["xyz plot", *(["adetailer"] if self.detailer else [])]
        return {"txt2img": names, "img2img": names}

    def _options(self) -> Json:
        if not isinstance(self.config.get("CLIP_stop_at_last_layers", 1), int):
            raise Refusal(500, "ValidationError", "1 validation error for Options")
        return {**self._defaults, **self.config}

    def _set_options(self, body: Json) -> None:
        model = body.get("sd_model_checkpoint")
        if self.forge:
            self.config["sd_model_checkpoint"] = model  # also where it is not named
        if model is not None and self._checkpoint(model) is None:
            raise Refusal(500, "RuntimeError", f"model {model!r} not found")
        for name, value in body.items():
            if name not in self._defaults:
                raise Refusal(500, "KeyError", repr(name))
            if name == "sd_vae" and value != self.config.get(name):
                with self.queue:  # it is loaded, as soon as there is nothing else to do
                    pass
            self.config[name] = value

    def _progress(self, query: dict[str, list[str]]) -> Json:
        state = dict(self._state)
        jobs, steps = state["job_count"], state["sampling_steps"]
        done = 0.0
        if jobs:
            done = 0.01 + (state["job_no"] / jobs if jobs > 0 else 0)
            done += state["sampling_step"] / steps / jobs if steps else 0
        picture = None if query.get("skip_current_image") == ["true"] else "preview"
        self.previews += picture is not None
        return {
            "progress": min(done, 1), "eta_relative": 0.0, "state": state, "current_image": picture
        }  # fmt: skip

    def _interrupt(self) -> Json:
        self.interrupts += 1
        if self.interrupts > self.forgets_interrupts:
            self._state["interrupted"] = True
        return {}

    # -- rendering ----------------------------------------------------------------------------

    def _checkpoint(self, name: Any) -> str | None:
        for known in TITLES:
            short = known.rsplit("/", 1)[-1].removesuffix(".safetensors")
            if name in (self.title(known), known, short, digest_of(known), digest_of(known)[:10]):
                return known
        return None

    def _begin(self) -> None:
        # The steps stay what they were, until the first one of this job.
        self._state |= {
            "job_count": -1, "job_no": 0, "interrupted": False,
            "skipped": False, "job_timestamp": str(time.time()),
        }  # fmt: skip

    def _end(self) -> None:
        self._state["job_count"] = 0

    def _pause(self, seconds: float, over: threading.Event) -> None:
        if over.wait(seconds) if seconds else over.is_set():
            raise Died

    def _generate(self, kind: str, body: Json) -> Json:
        asked, body = body, json.loads(json.dumps(body))
        self.twist(body)
        if kind == "img2img" and not body.get("init_images"):
            raise Refusal(404, "HTTPException", "", "Init image not found")
        self._check_scripts(body)
        over = self.over
        self._count(1)
        with self.queue:
            self._begin()
            try:
                made, info = self._process(kind, body, over)
            finally:
                self._count(-1)
                self._end()
        # The overrides are undone by now.
        images = [self._encoded(image) for image in made]
        return {"images": images, "parameters": asked, "info": json.dumps(info)}

    def _count(self, more: int) -> None:
        with self._counting:
            self._at_once += more
            self.most_at_once = max(self.most_at_once, self._at_once)

    def _check_scripts(self, body: Json) -> None:
        for name in body.get("alwayson_scripts") or {}:
            if name.lower() not in self._scripts()["img2img"]:
                raise Refusal(422, "HTTPException", "", f"always on script {name} not found")

    def _encoded(self, image: Image) -> str:
        held = io.BytesIO()
        kind = self.sends or str({**self._defaults, **self.config}["samples_format"])
        kind = kind.upper().replace("JPG", "JPEG")
        image.save(held, kind)
        return base64.b64encode(held.getvalue()).decode()

    def _process(self, kind: str, body: Json, over: threading.Event) -> tuple[list[Image], Json]:
        overrides = dict(body.get("override_settings") or {})
        for name in overrides:
            if name not in self._defaults:
                raise Refusal(500, "KeyError", repr(name))
        stored = {name: self.config[name] for name in overrides if name in self.config}
        if self._checkpoint(overrides.get("sd_model_checkpoint")) is None:
            overrides.pop("sd_model_checkpoint", None)
        order = list(overrides)
        chosen, preferred = "sd_vae", "sd_vae_overrides_per_model_preferences"
        if preferred in order and order.index(preferred) > order.index(chosen):
            overrides.pop(preferred)  # the VAE is chosen by then
        self.config |= overrides
        try:
            settings = {**self._defaults, **self.config}
            self._load(settings, over)
            return self._sample(kind, body, settings, over)
        finally:
            if self._state["interrupted"] and self.unwinds is not None:
                self.unwinds.wait(PATIENCE_S)
            if body.get("override_settings_restore_afterwards", True):
                self.config |= stored  # the others stay as they are now

    def _load(self, settings: Json, over: threading.Event) -> None:
        model = self._checkpoint(settings["sd_model_checkpoint"]) or self._loaded
        if model != self._loaded:
            self._pause(self.load_s, over)
            self._loaded = model
            self.loads.append(model)
        vae = settings["sd_vae"]
        if not settings["sd_vae_overrides_per_model_preferences"]:
            vae = VAES[0]  # which lies beside the model
        self._vae = vae if vae in VAES and not self.forge else None

    def _sample(
        self, kind: str, body: Json, settings: Json, over: threading.Event
    ) -> tuple[list[Image], Json]:
        steps = int(body.get("steps", 50))
        if steps < 1:
            raise Refusal(500, "ZeroDivisionError", "division by zero")
        if self.broken:
            raise Refusal(500, "RuntimeError", self.broken)
        count = int(body.get("batch_size", 1)) * int(body.get("n_iter", 1))
        if count >= BITES:
            raise Died
        sampler, schedule = sampler_and_schedule(body, self.old)
        wide, tall = (int(body.get(side, 512)) for side in ("width", "height"))
        extras = self._extras(body, schedule, sampler, settings)
        detail = detail_of(body)
        inputs = [decoded(data) for data in body.get("init_images") or []]
        if detail is not None and inputs:
            steps, sampler, wide, tall = 1, "Euler", 128, 128
        size = wide // 8 * 8, tall // 8 * 8
        if body.get("enable_hr"):
            size = grown((wide, tall), float(body.get("hr_scale", 2)))
            if settings["use_old_hires_fix_width_height"]:
                size = wide, tall
        if self.vram_pixels and size[0] * size[1] * count > self.vram_pixels:
            raise Refusal(500, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 9 GiB")
        seed = int(body.get("seed", -1))
        seed = random.randrange(2**32) if seed == -1 else seed
        seeds = [seed + place for place in range(count)]
        prompt = f"{body.get('prompt', '')}{self.adds_to_prompt}"
        if settings["sd_lora"] != "None":
            prompt += f" <lora:{settings['sd_lora']}:1>"
        if settings["enable_prompt_comments"]:
            prompt = prompt.split("#")[0]
        self._state |= {"job_count": int(body.get("n_iter", 1))}
        self._pause(self.settle_s, over)
        done = self._steps(steps, over)
        look = [
            self._loaded, self._vae, sampler, extras.get("Schedule type"), steps, done, prompt,
            body.get("negative_prompt", ""), body.get("cfg_scale", 7.0), body.get("styles"),
            settings.get("CLIP_stop_at_last_layers"), settings["randn_source"], extras,
            settings["eta_noise_seed_delta"], body.get("eta"), body.get("subseed_strength", 0),
            settings["emphasis"],
        ]  # fmt: skip
        if settings["randn_source"] != "CPU":
            look.append(id(self))  # every card has its own
        made = [drawn(size, [*look, one]) for one in seeds] if done else []
        if inputs:
            share = 0.1 if detail is not None else float(body.get("denoising_strength", 0.75))
            made = [blended(inputs[0], image, share, detail is not None) for image in made]
        first = 0
        if made and (self.grid or (body.get("save_images") and count > 1)):
            made, first = [drawn(size, ["grid"]), *made], 1
        modules = settings.get("forge_additional_modules") or []
        if self.forge and body.get("enable_hr"):
            extras["Hires CFG Scale"] = body.get("hr_cfg", 1.0)
            assert body.get("hr_additional_modules"), "it fails without"
        named = f", Schedule type: {schedule}" if schedule else ""
        held = "".join(
            f", Module {place}: {name.rpartition('.')[0]}" for place, name in enumerate(modules, 1)
        )
        info = {
            "prompt": prompt, "all_prompts": [prompt] * count, "seed": seeds[0],
            "negative_prompt": body.get("negative_prompt", ""),
            "all_negative_prompts": [body.get("negative_prompt", "")] * count,
            "all_seeds": seeds, "width": wide, "height": tall, "sampler_name": sampler,
            "cfg_scale": body.get("cfg_scale", 7.0), "steps": steps,
            "batch_size": body.get("batch_size", 1),
            "sd_model_name": self._loaded.rsplit("/", 1)[-1].removesuffix(".safetensors"),
            "sd_model_hash": digest_of(self._loaded)[:10] if self.hashes else None,
            "sd_vae_name": self._vae,
            "sd_vae_hash": digest_of(self._vae)[:10] if self._vae else None,
            "clip_skip": settings.get("CLIP_stop_at_last_layers"), "index_of_first_image": first,
            "extra_generation_params": extras, "version": "v1.10.1",
            "infotexts": [f"{prompt}\nSampler: {sampler}{named}{held}, Version: 1"],
        }  # fmt: skip
        self.tells(info)
        made += [drawn((24, 24), ["map"])] * self.more_images
        return made, info

    def _extras(self, body: Json, schedule: str, sampler: str, settings: Json) -> Json:
        known: Json = next((one for one in SAMPLERS if one["name"] == sampler), {"options": {}})
        own = known["options"].get("scheduler")
        label = schedule if schedule != "Automatic" else (own or "").title()
        extras: Json = {"Schedule type": label} if label else {}
        if body.get("enable_hr"):
            upscaler = body.get("hr_upscaler")
            if upscaler not in (*UPSCALERS, *LATENT):
                raise Refusal(500, "Exception", f"could not find upscaler named {upscaler}")
            extras |= {"Hires upscale": body.get("hr_scale", 2), "Hires upscaler": upscaler}
        if body.get("refiner_checkpoint"):
            refiner = self._checkpoint(body["refiner_checkpoint"])
            if refiner is None:
                name = body["refiner_checkpoint"]
                raise Refusal(500, "Exception", f"Could not find checkpoint with name {name}")
            short = refiner.removesuffix(".safetensors")
            extras |= {"Refiner": f"{short} [{digest_of(refiner)[:10]}]"}
        tags = re.findall(r"<lora:([^:>]+)", str(body.get("prompt")))
        held = [name for name in tags if name in LORAS and name not in self.lost_loras]
        if held and settings["lora_add_hashes_to_infotext"]:
            extras["Lora hashes"] = ", ".join(f"{name}: {digest_of(name)[:12]}" for name in held)
        detail = detail_of(body)
        if detail is not None:
            extras["ADetailer model"] = detail.get("ad_model")
        return extras

    def _steps(self, steps: int, over: threading.Event) -> int:
        """How many were done: fewer where somebody interrupted."""
        if self._state["interrupted"]:
            return 0
        self._state["sampling_steps"] = steps
        for step in range(steps):
            self._state["sampling_step"] = step
            if step == self.die_at:
                raise Died
            self._pause(self.step_s, over)
            self.stepped.set()
            if self._state["interrupted"] or self._state["skipped"]:
                return step + 1
        self._state["sampling_step"] = steps
        return steps

    def _extra(self, body: Json) -> Json:
        image = decoded(str(body.get("image")))
        with self.queue:
            self._begin()
            self._state["job_count"] = 1
            # Whatever goes wrong now, the job is never said to be over.
            if body.get("upscaler_1") not in UPSCALERS:
                name = body.get("upscaler_1")
                raise Refusal(500, "AssertionError", f"could not find upscaler named {name}")
            size = grown(image.size, float(body.get("upscaling_resize", 2)))
            if self.vram_pixels and size[0] * size[1] > self.vram_pixels:
                raise Refusal(500, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 9 GB")
            self._steps(2, self.over)
            self._end()
            made = image.resize(size, Resampling.LANCZOS)
            if body["upscaler_1"] not in (*NOT_LOADED, "Lanczos"):
                made = made.filter(ImageFilter.SHARPEN)
            return {"html_info": "", "image": self._encoded(made)}


def main() -> None:
    fake = FakeWebUI(int(sys.argv[1]) if len(sys.argv) > 1 else 7860)
    fake.step_s = 0.05
    fake.start()
    print(f"A fake WebUI at {fake.url}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
