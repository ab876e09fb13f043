"""The inner of a runner's two processes: the environment's Python, confined before it was started.

It takes over what its supervisor holds open for it, and answers that it is ready.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import os
from typing import Any

from corral.runtime import failures
from corral.runtime.channels import configuration
from corral.runtime.channels.frames import frame
from corral.runtime.channels.inbox import Inbox
from corral.runtime.channels.road import Road
from corral.runtime.sandbox import rules

KIT = os.path.dirname(failures.PACKAGE)


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
    os.set_inheritable(road.words_in, True)
    if config.get("secrets"):
        from corral.runtime.channels.redaction import Redactor

        road.hide(Redactor(config["secrets"]))
        os.environ.update(config["secrets"])
        os.environ["CORRAL_SECRETS"] = ",".join(config["secrets"])
        assert road.redactor is not None
        failures.hide(road.redactor)
    os.environ["CORRAL_FRAMES_FD"] = str(road.words_in)
    os.environ["CORRAL_FRAMES_INODE"] = str(os.fstat(road.words_in).st_ino)
    # Whatever Python a job starts finds `corral.job`, and what the user put on the path.
    paths = (KIT, os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path += [path for path in config.get("packages", ()) if path not in sys.path]
    road.send(frame("ready", pid=told["parent"], enforced=enforced))
    # After the answer: loading cloudpickle takes as long as everything before it.
    from corral.runtime.attempt_loop import AttemptLoop
    from corral.runtime.files.run_folder import HeldFolder
    from corral.runtime.process.posix_state import PosixState

    bounds = rules.bounds(config, KIT, enforced)
    AttemptLoop(inbox, road, bounds, PosixState, HeldFolder).run()
