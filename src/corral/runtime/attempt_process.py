"""The inner of a runner's two processes: the environment's Python, confined before it started."""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import os
from typing import Any

from corral.runtime.channels import configuration
from corral.runtime.channels.frames import frame
from corral.runtime.channels.inbox import Inbox
from corral.runtime.channels.road import Road
from corral.runtime.sandbox import rules


def main() -> int:
    with open(int(sys.argv[2]), "rb") as file:
        told = configuration.decode(file.read())
    sys.argv = sys.argv[:1]
    own_errors: int = told["errors"]
    os.set_inheritable(own_errors, False)
    code = 1
    try:
        _run(told)
        code = 0
    except BaseException:
        import traceback

        os.write(own_errors, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(code)  # Threads that an attempt left behind would be waited for otherwise.


def _run(told: dict[str, Any]) -> None:
    config, enforced = told["config"], told["enforced"]
    for fd in told["road"]:
        os.set_inheritable(fd, False)
    inbox, road = Inbox.taken_over(told["inbox"]), Road(told["road"])
    for fd in road.for_children:
        os.set_inheritable(fd, True)
    os.environ["CORRAL_FRAMES_FD"] = str(road.words_in)
    os.environ["CORRAL_FRAMES_INODE"] = str(os.fstat(road.words_in).st_ino)
    road.send(frame("ready", pid=told["parent"], enforced=enforced))
    # After the answer: loading cloudpickle takes as long as everything before it.
    from corral.runtime.attempt_loop import AttemptLoop, set_up
    from corral.runtime.failures import KIT
    from corral.runtime.files.run_folder import HeldFolder
    from corral.runtime.process.state import PosixState

    set_up(config, road)
    bounds = rules.bounds(config, KIT, enforced)
    AttemptLoop(inbox, road, bounds, PosixState, HeldFolder).run()
