"""What a worker can say of its WebUI when it registers: models, samplers, stages, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from corral.core.images.pipeline import STAGES
from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui.server import WebUIServer
from corral.runtime.pipeline.webui.stock import DETAILER, ServerStock


class ProbedModel(Struct, frozen=True):
    name: str
    """As a worker's model files are named: without folder, ending and hash."""
    title: str
    sha256: str
    """Empty until the server has hashed it, which it does when it first loads it."""


class WebUIProbe(Struct, frozen=True):
    models: tuple[ProbedModel, ...]
    samplers: tuple[str, ...]
    schedules: tuple[str, ...]
    upscalers: tuple[str, ...]
    stages: tuple[str, ...]
    versions: dict[str, str]


def probe(config: Mapping[str, Any], *, thorough: bool = False) -> WebUIProbe:
    """Of an entry of `worker.backends`. Raises `StageFailed` where the server does not answer.
    Thorough: with the server's own version, for which it takes stock of itself."""
    server = WebUIServer(
        str(config.get("url") or "http://127.0.0.1:7860"),
        str(config.get("username") or ""),
        str(config.get("password") or ""),
    )
    try:
        stock = ServerStock(server)
        detailer = stock.has_detailer()
        return WebUIProbe(
            models=tuple(
                ProbedModel(model_name(model.title.rsplit("/", 1)[-1]), model.title, model.sha256)
                for model in stock.models()
            ),
            samplers=tuple(word.name for word in stock.samplers()),
            schedules=tuple(word.name for word in stock.schedules()),
            upscalers=tuple(stock.upscalers()),
            stages=tuple(name for name in STAGES if detailer or name != DETAILER),
            versions=_versions(server, detailer, thorough),
        )
    finally:
        server.close()


def _versions(server: WebUIServer, detailer: bool, thorough: bool) -> dict[str, str]:
    """Where the server says so; nothing depends on them."""
    found: dict[str, str] = {}
    places = [("webui", "internal/sysinfo", "Version")] if thorough else []
    if detailer:
        places.append((DETAILER, "adetailer/v1/version", "version"))
    for name, path, key in places:
        try:
            answer = server.find(path)
        except StageFailed:
            continue
        if isinstance(answer, dict) and answer.get(key):
            found[name] = str(answer[key])
    return found
