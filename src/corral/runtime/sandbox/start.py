"""The start of a forked runner: the supervisor forks, its child confines itself and becomes the
environment's Python.

Until that exec it is the agent's own interpreter that runs, so nothing of an environment, not even
a `.pth` file of some package, is executed outside of the sandbox. And until then every import is
waited for, so there are few, here and in what is imported here: `typing`, `json` or `signal` would
take longer than all the rest. What the supervisor needs it loads beside the start of its child.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import os

from corral.runtime.channels import configuration
from corral.runtime.channels.inbox import Inbox
from corral.runtime.process import posix
from corral.runtime.sandbox import rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

KIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PIPE_SIZE = 256 * 1024


def main() -> int:
    posix.close_to_others()  # It may soon know secrets, and it holds the way to the agent.
    inbox = Inbox(posix.move_high(os.dup(0)), posix.move_high(int(sys.argv[1])))
    road = _road(posix.move_high(os.dup(1)))
    own_errors = posix.move_high(os.dup(2))
    line = inbox.first()
    if line is None:
        return 0
    config = configuration.decode(line)
    hold = rules.Hold(config)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(config, inbox, road, own_errors, parent)
        except BaseException:
            # Nothing of ours may unwind into the supervisor's half of the program. This is no
            # word of a job, so it goes to the agent's own log.
            import traceback

            os.write(own_errors, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(1)
    from corral.runtime.supervisor import Supervisor

    return Supervisor(pid, inbox.fd, road, hold, config.get("secrets") or {}).run()


def _become(
    config: dict[str, Any], inbox: Inbox, road: Sequence[int], own_errors: int, parent: int
) -> NoReturn:
    posix.die_with(parent)
    told = {
        "config": config,
        "enforced": rules.apply(config, KIT),
        "parent": parent,
        "errors": own_errors,
        "inbox": inbox.pass_on(),
        "road": road,
    }
    # What the environment's Python says before an attempt begins is no word of a job.
    os.dup2(own_errors, 1)
    os.dup2(own_errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in (own_errors, *road):
        os.set_inheritable(fd, True)
    python = config["python"]
    command = [python, "-I", sys.argv[0], "confined", str(_held(told))]
    os.execve(python, command, {**os.environ, **(config.get("environ") or {})})  # noqa: S606


def _held(told: dict[str, Any]) -> int:
    """A file without a name: secrets are in it, and nobody else may read them on the way."""
    fd = posix.memory()
    os.set_inheritable(fd, True)
    with open(fd, "wb", closefd=False) as file:
        file.write(configuration.encode(told))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _road(agent_fd: int) -> tuple[int, ...]:
    """The files of a `Road`, in its order."""
    memory = (posix.memory(), posix.memory(), posix.memory())
    hurry, hurries = _pipe(inheritable=True)
    os.set_blocking(hurries, False)
    captured = (*_pipe(), *_pipe())
    return (agent_fd, *memory, *captured, *_pipe(inheritable=True), hurry, hurries)


def _pipe(*, inheritable: bool = False) -> tuple[int, int]:
    reads, writes = os.pipe()
    reads, writes = posix.move_high(reads), posix.move_high(writes, inheritable=inheritable)
    os.set_blocking(reads, False)
    if not inheritable:
        posix.enlarge_pipe(writes, PIPE_SIZE)
    return reads, writes
