"""What a worker can say of its WebUI when it registers: models, samplers, stages, versions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.core.pipeline import STAGES
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui.server import Server
from corral.runtime.pipeline.webui.stock import DETAILER, Stock


class ProbedModel(Struct, frozen=True):
    name: str
    """As records name it, without folder ending and hash."""
    title: str
    sha256: str
    """Empty until the server has hashed it, which it does when it first loads it."""


class Probe(Struct, frozen=True):
    models: tuple[ProbedModel, ...]
    samplers: tuple[str, ...]
    schedules: tuple[str, ...]
    upscalers: tuple[str, ...]
    stages: tuple[str, ...]
    versions: dict[str, str]


def probe(config: dict[str, Any]) -> Probe:
    """From an entry of `worker.backends`. Raises `StageFailed` where the server does not answer."""
    server = Server(
        str(config.get("url") or "http://127.0.0.1:7860"),
        str(config.get("username") or ""),
        str(config.get("password") or ""),
    )
    try:
        stock = Stock(server)
        detailer = stock.has_detailer()
        return Probe(
            models=tuple(
                ProbedModel(model.name or model.title, model.title, model.sha256)
                for model in stock.models()
            ),
            samplers=tuple(word.name for word in stock.samplers()),
            schedules=tuple(word.name for word in stock.schedules()),
            upscalers=tuple(stock.upscalers()),
            stages=tuple(name for name in STAGES if detailer or name != DETAILER),
            versions=_versions(server, detailer),
        )
    finally:
        server.close()


def _versions(server: Server, detailer: bool) -> dict[str, str]:
    """Where the server says so; nothing depends on them."""
    found: dict[str, str] = {}
    places = [("webui", "internal/sysinfo", "Version")]
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
