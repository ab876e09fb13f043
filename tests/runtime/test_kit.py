"""The kit has what a job can load of Corral, and nothing of what runs beside jobs."""

from __future__ import annotations

from pathlib import Path

import grimp

from corral.runtime.environments import kit

JOBS_LOAD = ("corral.core", "corral.job", "corral.runtime", "corral.sdk")


def test_whatever_a_job_can_import_is_there() -> None:
    graph = grimp.build_graph("corral")
    wanted = {one for one in graph.modules if one == "corral" or one.startswith(JOBS_LOAD)}
    todo = list(wanted)
    while todo:
        new = graph.find_modules_directly_imported_by(todo.pop()) - wanted
        wanted |= new
        todo += new
    has = {_module(inside) for inside, _ in kit.contents()[1]}
    assert wanted <= has
    assert not any(name.startswith(("corral.controller", "corral.agent")) for name in has)


def test_what_a_runner_loads_is_compiled(tmp_path: Path) -> None:
    _, found = kit.contents()
    kit.write(found, tmp_path)
    bytecode = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert {"attempt_loop", "supervisor", "job", "cloudpickle"} <= bytecode
    assert all(path.exists() for path in kit.compiled(tmp_path))


def _module(inside: Path) -> str:
    return ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
