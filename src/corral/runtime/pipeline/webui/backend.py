"""The WebUI as a backend: takes its turn at the server, sends a stage there, checks what comes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any

from PIL.Image import Image

from corral.core.images.names import folded
from corral.core.images.pipeline import ADetailer, Img2Img, Record, Stage, Txt2Img, Upscale
from corral.runtime.pipeline.backend import (
    BLOCK,
    Rendered,
    StageFailed,
    Tell,
    later_than,
    seed_of,
    stop_if_cancelled,
    unless_begun,
)
from corral.runtime.pipeline.webui import payloads, truth
from corral.runtime.pipeline.webui.errand import Errand
from corral.runtime.pipeline.webui.payloads import Look
from corral.runtime.pipeline.webui.server import ANSWER_S, Down, WebUIServer
from corral.runtime.pipeline.webui.stock import ServerStock, last, resizes_plainly
from corral.runtime.pipeline.webui.truth import Expected, Info, Lossy
from corral.runtime.pipeline.webui.turn import Turn
from corral.runtime.pipeline.webui.user_settings import UserSettings

LOOK_S = 0.1
REFRESHED = ("refresh-checkpoints", "refresh-vae", "refresh-loras")
STOP_S = 1.5
"""A cancelled job waits so long for the server; after that the errand goes on alone."""


class WebUI:
    name = "webui"

    def __init__(
        self,
        *,
        url: str = "http://127.0.0.1:7860",
        username: str = "",
        password: str = "",
        folder: str = "",
        answer_s: float = ANSWER_S,
    ) -> None:
        self._server = WebUIServer(url, username, password, answer_s=answer_s)
        self._folder = folder
        self._stock = ServerStock(self._server)
        self._user = UserSettings(self._server, self._stock)

    def render(self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell) -> Rendered:
        turn = self._take_turn(stage, record, tell)
        errand = Errand(
            self._server, turn, lambda errand: self._work(errand, turn, stage, record, images)
        )
        errand.start()
        try:
            while not wait((errand.ended,), LOOK_S).done:
                stop_if_cancelled(tell)
                tell.progress(*errand.heard)
        except BaseException:
            errand.stop(STOP_S)
            raise
        try:
            rendered = errand.ended.result()
        except StageFailed as failed:
            if isinstance(failed, Down):
                self._user.forget()
                self._stock.forget()
            raise unless_begun(failed, errand.begun) from failed
        tell.progress(1.0, "done")
        return rendered

    def close(self) -> None:
        self._server.close()

    def _take_turn(self, stage: Stage, record: Record, tell: Tell) -> Turn:
        model = None if isinstance(stage, Upscale) else last(record.model)
        turn = Turn(self._server.url, self._folder, model)
        try:
            while True:
                stop_if_cancelled(tell)
                if turn.take():
                    return turn
                tell.progress(0.0, "waiting for another job at the same WebUI")
                time.sleep(LOOK_S)
        except BaseException:
            turn.release()
            raise

    def _work(
        self, errand: Errand, turn: Turn, stage: Stage, record: Record, images: Sequence[Image]
    ) -> Rendered:
        state, down = errand.reach(), False
        try:
            settings = self._user.borrow(errand, turn, state)
            with suppress(Lossy):
                return self._stage(errand, turn, stage, record, images, settings)
            turn.write(settled="")
            settings = self._user.borrow(errand, turn, state)
            return self._stage(errand, turn, stage, record, images, settings)
        except Down:
            down = True  # the next turn gives back
            raise
        finally:
            if not down:
                self._user.give_back(errand, turn)

    def _stage(
        self,
        errand: Errand,
        turn: Turn,
        stage: Stage,
        record: Record,
        images: Sequence[Image],
        settings: frozenset[str],
    ) -> Rendered:
        look = self._looked_up(errand, stage, record, settings)
        for later in later_than(stage, record):
            self._looked_up(errand, later, record, settings)
        if isinstance(stage, Upscale):
            return self._upscaled(errand, stage, images)
        assert look is not None
        self._user.lend(turn, look.overrides)
        loaded = turn.read().get("model") != last(look.model.title)
        if isinstance(stage, Txt2Img):
            made = self._drawn(errand, stage, record, look)
        else:
            made = self._redrawn(errand, stage, record, look, images)
        turn.write(model=last((look.refiner or look.model).title))
        made.loaded = loaded
        return made

    def _looked_up(
        self, errand: Errand, stage: Stage, record: Record, settings: frozenset[str]
    ) -> Look | None:
        if isinstance(stage, Upscale):
            self._stock.upscaler(stage.upscaler)
            return None
        if isinstance(stage, ADetailer):
            if not self._stock.has_detailer():
                raise StageFailed(
                    "stage_missing",
                    f"The WebUI at {self._server.url} has no ADetailer. Install the extension "
                    "there, or let another worker take the job.",
                )
            self._stock.detector(stage.detector)
        if isinstance(stage, Txt2Img) and stage.hires is not None:
            self._stock.upscaler(stage.hires.upscaler, latent=True)
        return self._look(errand, stage, record, settings)

    def _look(self, errand: Errand, stage: Stage, record: Record, settings: frozenset[str]) -> Look:
        """What is missing may have come after the server last looked into its folders."""
        try:
            return payloads.look_of(stage, record, self._stock, settings)
        except StageFailed as failed:
            if failed.code != "model_missing":
                raise
        for path in REFRESHED:
            try:
                errand.call(path, {})
            except Down:
                raise
            except StageFailed:
                continue  # an older server, or one without LoRAs
        self._stock.forget()
        return payloads.look_of(stage, record, self._stock, settings)

    def _drawn(self, errand: Errand, stage: Txt2Img, record: Record, look: Look) -> Rendered:
        base = (record.width, record.height)
        size = payloads.grown(base, 1.0 if stage.hires is None else stage.hires.factor)
        cut = payloads.slices(record, size[0] * size[1])
        made = Rendered(images=[], seconds=0.0)
        for place, seeds in enumerate(cut):
            errand.share = (place, len(cut))
            body = payloads.txt2img(stage, record, look, seeds, self._stock)
            expected = Expected(
                look=look,
                seeds=seeds,
                size=size,
                base=base,
                steps=record.steps,
                cfg_scale=record.cfg_scale,
                refined=stage.refiner is not None
                and stage.refiner.switch_at < (record.steps - 1) / record.steps,
            )
            self._add(made, stage, errand.call("txt2img", body), expected)
        return made

    def _redrawn(
        self,
        errand: Errand,
        stage: Img2Img | ADetailer,
        record: Record,
        look: Look,
        images: Sequence[Image],
    ) -> Rendered:
        """Image by image, each with its own seed, so that none depends on its neighbours."""
        made = Rendered(images=[], seconds=0.0)
        for place, image in enumerate(images):
            errand.share = (place, len(images))
            seed = seed_of(record, place)
            size = payloads.grown(image.size, 1.0)
            detector = stage.detector if isinstance(stage, ADetailer) else ""
            expected = Expected(
                look=look,
                seeds=[seed],
                size=image.size if detector else size,
                base=size,
                steps=record.steps if detector else getattr(stage, "steps", 0) or record.steps,
                cfg_scale=record.cfg_scale,
                detector=detector,
            )
            body = payloads.img2img(stage, record, look, seed, image, size)
            self._add(made, stage, errand.call("img2img", body), expected)
        return made

    def _upscaled(self, errand: Errand, stage: Upscale, images: Sequence[Image]) -> Rendered:
        made = Rendered(images=[], seconds=0.0)
        for place, image in enumerate(images):
            errand.share = (place, len(images))
            body = payloads.upscale(stage, image, self._stock)
            answer, seconds = errand.call("extra-single-image", body)
            found = truth.decoded(str(answer.get("image") or ""), self._server.url)
            wanted = payloads.grown(image.size, stage.factor)
            # Where a side is no whole number of blocks, releases round in different ways.
            truth.complain(truth.sizes([found], wanted, BLOCK), self._server.url)
            if truth.is_resized(image, found) and not resizes_plainly(body["upscaler_1"]):
                self._stock.forget()
                raise StageFailed(
                    "model_missing",
                    f"The WebUI at {self._server.url} could not load the upscaler "
                    f"{body['upscaler_1']!r} and only resized the image. Its log says why.",
                )
            made.images.append(found)
            made.seconds += seconds
            made.info = {"models": _of_upscaler(body["upscaler_1"])}
        return made

    def _add(
        self, made: Rendered, stage: Stage, answered: tuple[Any, float], expected: Expected
    ) -> None:
        answer, seconds = answered
        images, info = truth.images_of(answer, expected, self._server.url)
        made.images += images
        made.seeds += expected.seeds
        made.seconds += seconds
        made.info = self._about(info, stage, expected.look)
        if not made.warnings and not info.get("sd_model_hash"):
            made.warnings.append(
                f"The WebUI does not hash its models: {expected.look.model.title} was told by name."
            )

    def _about(self, info: Info, stage: Stage, look: Look) -> dict[str, Any]:
        """For the card. A server hashes a model when it first loads it, so the list is asked for
        again where it had none."""
        model = look.model
        if not model.sha256:
            self._stock.forget()
            with suppress(StageFailed):
                model = self._stock.model(look.model.title)
        models = {model.name or model.title: model.sha256 or str(info.get("sd_model_hash") or "")}
        if info.get("sd_vae_name"):
            models[str(info["sd_vae_name"])] = str(info.get("sd_vae_hash") or "")
        if look.refiner is not None:
            models[look.refiner.name] = look.refiner.sha256 or look.refiner.hash
        hashes = str((info.get("extra_generation_params") or {}).get("Lora hashes") or "")
        told = dict(re.findall(r"([^:,]+): ([0-9a-f]+)", hashes))
        models |= {name: told.get(name, "") for name in look.loras}
        hires = stage.hires if isinstance(stage, Txt2Img) else None
        if hires is not None and not folded(hires.upscaler).startswith("latent"):
            models |= _of_upscaler(self._stock.upscaler(hires.upscaler, latent=True))
        about: dict[str, Any] = {"models": models}
        if info.get("version"):
            about["versions"] = {"webui": str(info["version"])}
        return about


def _of_upscaler(name: str) -> dict[str, str]:
    """For the card. No server tells a hash of it."""
    return {} if resizes_plainly(name) else {name: ""}
