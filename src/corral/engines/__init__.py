"""Ways to reach workers: each a module with the name that `engines` in the settings calls it by."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from msgspec.structs import replace

from corral.engines.engine import Engine, EngineContext


def built(names: Sequence[str], context: EngineContext) -> dict[str, Engine]:
    """Every engine is given those of the known workers that are its own."""
    engines: dict[str, Engine] = {}
    for name in names:
        own = [worker for worker in context.known if worker.engine == name]
        module = import_module(f"corral.engines.{name}")
        engines[name] = module.build(replace(context, known=own))
    return engines
