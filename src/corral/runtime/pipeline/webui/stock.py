"""What a server has, and its own spelling of the names that records use.

It takes an unknown name for another one without a word, so nothing is sent that is not here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.core.images.names import folded
from corral.core.images.pipeline import ADETAILER, STAGES
from corral.runtime.pipeline import backend
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui.server import WebUIServer

FRESH_S = 60.0
LORAS_FRESH_S = 600.0
AUTOMATIC = "Automatic"
ENDINGS = re.compile(r"\.(safetensors|ckpt|pt|pth|bin|gguf)$", re.IGNORECASE)
SHA_SHOWN = 10
"""Digits of a sha256 in a title."""
HASH = re.compile(r"\s*\[[0-9a-f]{4,64}\]$", re.IGNORECASE)
REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
RESIZES = ("lanczos", "nearest")
"""Upscalers that need no file."""
PLAINLY = ("normal", "uniform")
"""One schedule by two names, of which 1.9 has only the second; before, that of a plain name."""


def plain(name: str) -> str:
    """`x.safetensors [hash]`, `x.safetensors` and `x` are one model."""
    return ENDINGS.sub("", _file(name))


def last(name: str) -> str:
    return plain(name).rsplit("/", 1)[-1]


def resizes_plainly(upscaler: str) -> bool:
    return folded(upscaler) in RESIZES


class ServerModel(Struct, frozen=True):
    title: str
    name: str
    file: str
    hash: str
    sha256: str

    @property
    def spellings(self) -> set[str]:
        return {plain(self.title), plain(self.name), last(self.title), last(self.file)} - {""}

    @property
    def aliases(self) -> set[str]:
        """What the server itself takes for this model, to the letter."""
        path = HASH.sub("", self.title)
        short = ENDINGS.sub("", re.split(r"[/\\]", path)[-1])
        known = {self.title, path, self.name, short, self.hash, self.sha256}
        return (known | {f"{short} [{self.hash}]"}) - {""}

    def is_called(self, name: str, digest: str) -> bool:
        """Whether `info` or a card means this one; a digest says more than a name."""
        known = (self.sha256 or self.hash).lower()
        if digest and known:
            return known.startswith(digest.lower()) or digest.lower().startswith(known)
        return plain(name) in self.spellings


class Word(Struct, frozen=True):
    """A sampler or a schedule."""

    name: str
    """As it is sent."""
    others: frozenset[str]
    """All its spellings, folded."""
    schedule: str = ""
    """Of a sampler: the one that `Automatic` means."""


class ServerStock:
    """Lists are asked for when they are needed, and again when they are old or lack something."""

    def __init__(self, server: WebUIServer) -> None:
        self._server = server
        self._lists: dict[str, tuple[float, Any]] = {}

    def forget(self) -> None:
        self._lists.clear()

    def models(self) -> list[ServerModel]:
        return [
            ServerModel(
                title=str(one.get("title") or ""),
                name=str(one.get("model_name") or ""),
                file=str(one.get("filename") or ""),
                hash=str(one.get("hash") or ""),
                sha256=str(one.get("sha256") or ""),
            )
            for one in self._list("sd-models")
        ]

    def takes(self, name: str) -> bool:
        """Whether the server knows a model by exactly this name."""
        return any(name in model.aliases for model in self.models())

    def model(self, name: str) -> ServerModel:
        found = _model(name, self.models())
        if len(found) > 1:
            titles = ", ".join(model.title for model in found)
            raise StageFailed(
                "model_missing",
                f"The WebUI at {self._server.url} has several models {name!r}: {titles}. "
                "Name one by its folder or its hash.",
            )
        if not found:
            raise self._lacks("model", name, [model.title for model in self.models()])
        digest = _digest(name)
        if digest and not (found[0].sha256 or found[0].hash):
            return replace(found[0], hash=digest)  # it is hashed when it is loaded: then we see
        return found[0]

    def vae(self, name: str) -> str:
        """`None` is the one inside the model."""
        if plain(name) in ("", "none"):
            return "None"
        return self._vae(name, "sd-vae")

    def modules(self, names: str) -> tuple[str, ...]:
        """Of a Forge, whose list has text encoders too; `names` has commas between them."""
        wanted = (name for name in names.split(",") if plain(name) not in ("", "none"))
        return tuple(self._vae(name, "sd-modules") for name in wanted)

    def vaes(self) -> list[str]:
        listed = [*(self._optional("sd-vae") or []), *(self._optional("sd-modules") or [])]
        return [str(one.get("model_name") or "") for one in listed]

    def _vae(self, name: str, path: str) -> str:
        names = [str(one.get("model_name") or "") for one in self._optional(path) or []]
        for one in names:
            if plain(name) in (plain(one), last(one)):
                return one
        raise self._lacks("VAE", name, names)

    def lora(self, name: str) -> str:
        known = self._kept("loras", self._loras, LORAS_FRESH_S)
        for spelled in zip(*known, strict=True):  # names first, then paths, then what files say
            for one, spelling in zip(known, spelled, strict=True):
                if last(name) == last(spelling) not in ("", "none"):
                    return str(one[0])
        raise self._lacks("LoRA", name, [one[0] for one in known])

    def loras(self) -> list[tuple[str, str]]:
        """What each is called, by its file and by what that says of itself."""
        known = self._kept("loras", self._loras, LORAS_FRESH_S)
        return [(one[0], one[2]) for one in known]

    def _loras(self) -> list[tuple[str, ...]]:
        """Without all that training wrote into the files, which is megabytes of each."""
        found = self._server.find("sdapi/v1/loras", long=True) or []
        return [
            tuple(str(one.get(key) or "") for key in ("name", "path", "alias")) for one in found
        ]

    def samplers(self) -> list[Word]:
        return [
            Word(
                name=str(one["name"]),
                others=_spellings(one["name"], one.get("aliases")),
                schedule=str((one.get("options") or {}).get("scheduler") or ""),
            )
            for one in self._list("samplers")
        ]

    def sampler(self, name: str) -> Word:
        words = self.samplers()
        return _word(name, words) or self._no_word("sampler", name, words)

    def schedules(self) -> list[Word]:
        """None before 1.9: a sampler's name has it, as in `DPM++ 2M Karras`."""
        return [
            Word(
                name=str(one.get("label") or one["name"]),
                others=_spellings(one["name"], [one.get("label"), *(one.get("aliases") or [])]),
            )
            for one in self._optional("schedulers") or []
        ]

    def schedule(self, name: str) -> Word:
        words = self.schedules()
        same = PLAINLY if folded(name) in PLAINLY else ()
        for spelling in (name, *same):
            if found := _word(spelling, words):
                return found
        return self._no_word("schedule", name, words)

    def drawn_by(self, sampler: str, schedule: str) -> tuple[Word, Word]:
        """Many still write both into one name, as in `DPM++ 2M Karras`."""
        if not self.schedules():
            return self._both_in_one(sampler, schedule), Word(AUTOMATIC, _spellings(AUTOMATIC, ()))
        if _word(sampler, self.samplers()) is None:
            for word in self.schedules():
                if schedule and folded(schedule) not in word.others:
                    continue
                if sampler.lower().endswith(f" {word.name.lower()}"):
                    return self.sampler(sampler[: -len(word.name) - 1]), word
        return self.sampler(sampler), self.schedule(schedule or AUTOMATIC)

    def _both_in_one(self, sampler: str, schedule: str) -> Word:
        words = self.samplers()
        plainly = _word(sampler, words)
        if folded(schedule) in ("", folded(AUTOMATIC)):
            # Before 1.9 a plain name meant no schedule at all: a record means the same on both.
            own = backend.AUTOMATIC.get(folded(sampler), "").capitalize()
            return (own and _word(f"{sampler} {own}", words)) or self.sampler(sampler)
        if plainly is not None and folded(schedule) == folded(plainly.schedule):
            return plainly
        if plainly is not None and folded(schedule) in PLAINLY:
            return plainly
        return self.sampler(f"{sampler} {schedule}")

    def upscaler(self, name: str, *, latent: bool = False) -> str:
        names = self.upscalers()
        if latent:
            modes = self._optional("latent-upscale-modes") or []
            names = {**{str(one["name"]): "" for one in modes}, **names}
        known = name if name in names else ""
        for one in names:
            if not known and folded(name) and folded(one) == folded(name):  # of other scripts, ""
                known = one
        if not known:
            raise self._lacks("upscaler", name, [one for one in names if not names[one]])
        if names[known]:
            self.forget()
            raise StageFailed(
                "model_missing",
                f"The WebUI at {self._server.url} lists the upscaler {known!r} and {names[known]}: "
                "it would resize plainly and say nothing. Put the file into its models folder.",
            )
        return known

    def upscalers(self) -> dict[str, str]:
        """By name: why it cannot be loaded, where that shows. Those without a file that are no
        plain resize fetch it when they are first used, or fail to."""
        found = {}
        for one in self._list("upscalers"):
            name, path = str(one["name"]), str(one.get("model_path") or "")
            lacks = "has no file for it" if not path and not resizes_plainly(name) else ""
            if REMOTE.match(path):
                lacks = f"has not fetched its file ({path})"
            if name != "None":
                found[name] = lacks
        return found

    def has_detailer(self) -> bool:
        scripts = self._list("scripts").get("img2img") or []
        return ADETAILER in (str(name).lower() for name in scripts)

    def detector(self, name: str) -> str:
        """ADetailer passes over a detector that it does not have."""
        found = self._server.find("adetailer/v1/ad_model")
        names = [str(one) for one in (found or {}).get("ad_model") or []]
        if names and name not in names:
            raise self._lacks("detector", name, names)
        return name

    def _no_word(self, kind: str, name: str, words: Sequence[Word]) -> Word:
        raise self._lacks(kind, name, [word.name for word in words])

    def _lacks(self, kind: str, name: str, has: Sequence[str]) -> StageFailed:
        self.forget()  # it may be there the next time
        return StageFailed(
            "model_missing",
            f"The WebUI at {self._server.url} has no {kind} {name!r}. "
            f"It has {backend.listed(has, name)}.",
        )

    def _list(self, path: str) -> Any:
        return self._kept(path, lambda: self._server.get(path))

    def _optional(self, path: str) -> Any:
        return self._kept(path, lambda: self._server.find(f"sdapi/v1/{path}"))

    def _kept(self, path: str, ask: Any, fresh_s: float = FRESH_S) -> Any:
        asked, known = self._lists.get(path, (0.0, None))
        if known is None or time.monotonic() - asked > fresh_s:
            known = ask()
            self._lists[path] = (time.monotonic(), known)
        return known


def offer(options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """See `kinds.offer_of`. A model's sha256 is empty until the server first loads it."""
    server = WebUIServer(options["url"], options["username"], options["password"])
    try:
        stock = ServerStock(server)
        lacking = () if stock.has_detailer() else (ADETAILER,)
        models = {model.title: model.sha256 for model in stock.models()}
        return tuple(stage for stage in STAGES if stage not in lacking), models
    finally:
        server.close()


def names(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """See `kinds.names_of`."""
    server = WebUIServer(options["url"], options["username"], options["password"])
    try:
        stock = ServerStock(server)
        found = {
            "sampler": [word.name for word in stock.samplers()],
            "schedule": [word.name for word in stock.schedules()],
            "LoRA": [name for known in stock.loras() for name in known if name],
            "upscaler": [name for name, lacks in stock.upscalers().items() if not lacks],
            "VAE": stock.vaes(),
        }
        return {kind: has for kind, has in found.items() if has or kind == "LoRA"}
    finally:
        server.close()


def _model(name: str, models: Sequence[ServerModel]) -> list[ServerModel]:
    """As exactly as it can be: by title or hash, by file with its ending, by any spelling. One that
    is asked for with its hash is no other of the same name."""
    exact = [model for model in models if name in (model.title, model.sha256, model.hash)]
    if exact:
        return exact
    digest = _digest(name)
    if digest:
        models = [model for model in models if model.is_called(name, digest)]
    return (
        [model for model in models if _file(name) == _file(model.title)]
        or [model for model in models if plain(name) == plain(model.title)]
        or [model for model in models if _file(name) == _file(model.title).rsplit("/", 1)[-1]]
        or [model for model in models if plain(name) in model.spellings]
    )


def _digest(name: str) -> str:
    """That of `x.safetensors [hash]`. Shorter ones are of another, older kind."""
    tag = HASH.search(name.strip())
    digest = tag[0].strip(" []").lower() if tag else ""
    return digest if len(digest) >= SHA_SHOWN else ""


def _file(name: str) -> str:
    return HASH.sub("", name.strip()).replace("\\", "/").lower()


def _word(name: str, words: Iterable[Word]) -> Word | None:
    exact = [word for word in words if word.name == name]
    return next(iter(exact or [word for word in words if folded(name) in word.others]), None)


def _spellings(name: str, others: Iterable[str | None] | None) -> frozenset[str]:
    return frozenset(folded(word) for word in (name, *(others or ())) if word)
