"""`corral run` and `corral submit`: sending scripts and folders, and following them to the end."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from corral.cli.jobs.following import follow
from corral.cli.jobs.put import inputs_of
from corral.cli.terminal import completion, output
from corral.cli.terminal.arguments import AsJson
from corral.core.errors import CorralError, InvalidJob
from corral.core.text import seconds

if TYPE_CHECKING:
    from corral.sdk.aio import AsyncClient
    from corral.sdk.handles import AsyncHandle
SAME = (
    *("gpus", "gpu_memory", "vram_gb", "gpu", "cpus", "memory_gb", "worker", "priority", "retries"),
    *("name", "user", "batch", "fresh", "notify", "wait", "python", "read"),
)
"""Options that are called so in the SDK too."""


@dataclass
class Asked:
    """What `run` and `submit` may be given."""

    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A script, or a folder with an entry.")
    ]
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script as they are.")
    ] = None
    entry: Annotated[
        str | None,
        typer.Option(help="What to run in a folder: a file, or package.module:function. [main.py]"),
    ] = None
    gpus: Annotated[int | None, typer.Option(help="Whole GPUs.")] = None
    gpu_memory: Annotated[
        float | None, typer.Option(help="A share of one GPU, 0.1 to 1.0 in tenths.")
    ] = None
    vram_gb: Annotated[float | None, typer.Option(help="VRAM that each GPU must have.")] = None
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="What each GPU is called, as 'RTX 4090'.")
    ] = None
    cpus: Annotated[float | None, typer.Option(help="Processors. [1]")] = None
    memory_gb: Annotated[
        float | None, typer.Option(help="Memory reserved for it, and its limit.")
    ] = None
    worker: Annotated[
        str,
        typer.Option(help="auto, local, or a worker's name.", autocompletion=completion.workers),
    ] = "auto"
    worker_label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL", help="A label the worker must have: key or key=value. Repeatable."
        ),
    ] = None
    read: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="A path of the worker that it reads beyond the usual. Repeatable."
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A model that it works with. Repeatable."),
    ] = None
    duration: Annotated[
        str, typer.Option(help="After this long it is ended: seconds, or 90s, 30m, 12h, 2d.")
    ] = "1h"
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="REQ", help="A requirement, as numpy>=2. Repeatable."),
    ] = None
    requirements: Annotated[Path | None, typer.Option(help="A requirements file.")] = None
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Which Python, as 3.12. [this one's]")
    ] = None
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A variable. Repeatable.")
    ] = None
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A secret that it finds as a variable. Repeatable."),
    ] = None
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=FILE", help="A file that it finds as NAME. Repeatable."
        ),
    ] = None
    notify: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Told when it fails and when its batch is done."),
    ] = None
    queue_class: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="interactive or batch.")
    ] = None
    priority: Annotated[int, typer.Option(help="-100 to 100; higher is earlier.")] = 0
    retries: Annotated[int, typer.Option(help="Further tries when it fails.")] = 0
    name: Annotated[str | None, typer.Option(help="What to call it. [the script's name]")] = None
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label of the job. Repeatable.")
    ] = None
    user: Annotated[str | None, typer.Option(help="Who it is for.")] = None
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key again is the same job.")
    ] = None
    batch: Annotated[str | None, typer.Option(help="The batch it belongs to.")] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="A new process, never a warm one.")] = False
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Wait for a worker that can take it, or be refused."),
    ] = None
    as_json: AsJson = False


def _command(act: Callable[[Asked], None]) -> Callable[..., None]:
    """A command that takes all of `Asked`."""

    def command(**asked: Any) -> None:
        act(Asked(**asked))

    command.__name__, command.__doc__ = act.__name__, act.__doc__
    command.__signature__ = inspect.signature(Asked, eval_str=True)  # type: ignore[attr-defined]
    command.__annotations__ = get_type_hints(Asked, include_extras=True)
    return command


@_command
def run(asked: Asked) -> None:
    """Runs a script or folder on a worker, shows its output and passes its exit code on."""
    raise typer.Exit(asyncio.run(_run(asked, as_json=asked.as_json)))


@_command
def submit(asked: Asked) -> None:
    """Hands a script or folder over and prints its job id."""
    handle = asyncio.run(_submit(asked))
    if asked.as_json:
        output.show_json({"job_id": handle.id, "warnings": handle.warnings})
    else:
        output.warn(handle.warnings)
        output.show(handle.id)


async def _run(asked: Asked, *, as_json: bool) -> int:
    from corral.sdk.aio import AsyncClient

    async with AsyncClient() as client:
        handle = await _hand_over(client, asked, default_class="interactive")
        if not as_json:
            output.warn(handle.warnings)
        return await follow(handle, as_json=as_json)


async def _submit(asked: Asked) -> AsyncHandle:
    from corral.sdk.aio import AsyncClient

    async with AsyncClient() as client:
        return await _hand_over(client, asked, default_class="batch")


async def _hand_over(client: AsyncClient, asked: Asked, *, default_class: str) -> AsyncHandle:
    from corral.sdk.submit.requirements import resolve

    queue_class: Any = asked.queue_class or default_class  # which of both, the SDK checks
    try:
        return await client.submit_script(
            asked.target,
            asked.args or (),
            entry=asked.entry,
            requirements=[*resolve(asked.with_), *resolve(asked.requirements)],
            worker_labels=asked.worker_label or (),
            models=asked.model or (),
            duration=seconds(asked.duration),
            env=pairs("--env", asked.env),
            labels=pairs("--label", asked.label),
            secrets=asked.secret or (),
            inputs=await inputs_of(client, asked.input_),
            queue_class=queue_class,
            idempotency_key=asked.key,
            **{word: getattr(asked, word) for word in SAME},
        )
    except CorralError as error:
        error.message = in_options(error.message)
        raise


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidJob(f"{option} is written KEY=VALUE; got {text!r}.")
        found[name] = value
    return found


_WORDS = (
    (r"wait=True \(`--wait`\)", "`--wait`"),
    (r"wait=True", "`--wait`"),
    (r"written as a list: requirements=\['(.*?)'\]", r"given as `--with \1`"),
    (r"^requirements:", "--with:"),
    (r"`entry`", "`--entry`"),
    (r"\bqueue_class\b", "--class"),
    (r"\bidempotency_key\b", "--key"),
    (r"\b(gpu_memory|vram_gb|memory_gb)\b", lambda found: f"--{found[1].replace('_', '-')}"),
    (r"\bgpus=", "--gpus "),
    (r"^((?:Give )?)(gpus|cpus|duration|priority|retries|name|user|batch)(?= )", r"\1--\2"),
)


def in_options(message: str) -> str:
    """A refusal as somebody reads it who typed options.

    >>> in_options("Give gpus (whole GPUs) or gpu_memory (a share of one GPU), not both.")
    'Give --gpus (whole GPUs) or --gpu-memory (a share of one GPU), not both.'
    """
    for written, spoken in _WORDS:
        message = re.sub(written, spoken, message)
    return message
