"""Between fork and exec: the supervisor's child confines itself, then becomes the environment's
Python.

Until the exec it is the agent's own interpreter that runs, so nothing of an environment, not even
a `.pth` file of some package, is executed outside of the sandbox.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import json
import os
from typing import NoReturn

from corral.runtime import failures
from corral.runtime.channels.inbox import Inbox
from corral.runtime.channels.road import Road
from corral.runtime.process import posix
from corral.runtime.sandbox import rules

KIT = os.path.dirname(failures.PACKAGE)


def main(config_line: bytes, inbox: Inbox, road: Road, own_errors: int, parent: int) -> NoReturn:
    posix.die_with(parent)
    config = json.loads(config_line)
    told = {
        "config": config,
        "enforced": rules.apply(config, KIT),
        "parent": parent,
        "errors": own_errors,
        "inbox": inbox.pass_on(),
        "road": road.pass_on(),
    }
    # What the environment's Python says before an attempt begins is no word of a job.
    os.dup2(own_errors, 1)
    os.dup2(own_errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(own_errors, True)
    python = config["python"]
    command = [python, "-I", sys.argv[0], "confined", str(_held(told))]
    os.execve(python, command, {**os.environ, **(config.get("environ") or {})})  # noqa: S606


def _held(told: dict[str, object]) -> int:
    """A file without a name: secrets are in it, and nobody else may read them on the way."""
    fd = posix.memory()
    os.set_inheritable(fd, True)
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps(told).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
