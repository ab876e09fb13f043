"""What a silent image server alone has is not offered; other work goes on at its worker."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.core.events import AttemptExited, JobRequeued
from corral.core.job import Course, Failure, Given, Head, Needs, Shape, State, Workload
from corral.core.worker import Capabilities, ImageServer, Withdrawn, Worker
from corral.scheduler.circuit import CLOSED, Breaker, after
from corral.scheduler.fit import Room, refuse_ever, refuse_now
from corral.scheduler.settle import Policy, settle
from corral.scheduler.snapshot import Seat
from tests.scheduler.test_others import planned

SILENT = Worker(
    "w", "w", "agents",
    Capabilities(
        cpus=8.0, memory_gb=64.0, workloads=("python", "pipeline"),
        task_types=("webui", "comfyui", "render", "sketch"), models_present=("sdxl", "flux"),
    ),
    servers=(ImageServer("webui", "http://gpu:7860", "Nothing answers at http://gpu:7860."),),
    withdrawn=Withdrawn(tasks=("webui",), models=("sdxl",)),
)  # fmt: skip


def image(task: str, *models: str) -> Shape:
    return Shape(Needs(task=task, models=models), workload=Workload.PIPELINE)


@pytest.mark.parametrize(
    ("shape", "goes"),
    [
        (image("webui"), False),
        (image("render", "sdxl"), False),
        (image("render", "flux"), True),
        (image("comfyui", "flux"), True),
        (image("sketch"), True),
        (Shape(Needs(models=("sdxl",))), True),
    ],
)
def test_what_waits_for_a_silent_server(shape: Shape, goes: bool) -> None:
    assert bool(planned(shape, Seat(SILENT)).placements) is goes
    assert (refuse_now(shape, Room(SILENT)) is None) is goes
    assert refuse_ever(shape, SILENT) is None, "it comes back"
    back = replace(SILENT, withdrawn=Withdrawn())
    assert planned(shape, Seat(back)).placements


def test_why_says_which_one() -> None:
    told = refuse_now(image("webui"), Room(SILENT))
    assert told == "its image server does not answer; Nothing answers at http://gpu:7860"


def ended(code: str, course: Course, kind: str = "webui") -> JobRequeued:
    head = Head(
        "j", image("webui"), State.RUNNING, 0.0, 1, 2, given=Given(retries=0), course=course
    )
    exit_ = AttemptExited(
        "j", course.attempt, "w", 1.0, 1.0, failure=Failure(code, "gone", type=kind)
    )
    fact = settle(head, exit_, digest="", now=1.0, policy=Policy(), jitter=1.0, workers=[SILENT])
    assert isinstance(fact, JobRequeued)
    return fact


def test_a_job_that_found_one_silent_has_lost_nothing_and_is_soon_tried_again() -> None:
    for attempt in range(1, 40):
        fact = ended("backend_silent", Course(attempt=attempt, worker="w"))
        assert (fact.fault, fact.avoid) == ("none", "")
        assert 1.0 < fact.not_before <= 5.0


def test_one_that_dies_under_a_job_costs_it_an_attempt() -> None:
    assert ended("backend_down", Course(attempt=1, worker="w")).fault == "worker"


@pytest.mark.parametrize(
    ("code", "kind", "blamed"),
    [
        ("backend_silent", "webui", False),
        ("backend_down", "webui", False),
        ("backend_down", "comfyui", False),
        ("backend_down", "diffusers", True),
        ("backend_down", "", True),
    ],
)
def test_no_worker_is_blamed_for_its_image_server(code: str, kind: str, blamed: bool) -> None:
    circuit = CLOSED
    for job in "abcd":
        circuit = after(circuit, Failure(code, "gone", type=kind), job, at=1.0, breaker=Breaker())
    assert circuit.is_open(2.0) is blamed
