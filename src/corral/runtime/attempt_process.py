"""The inner of a runner's two processes: it confines itself and answers that it is ready."""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import json
import os

from corral.runtime import failures, posix, sandbox
from corral.runtime.frames import frame
from corral.runtime.inbox import Inbox
from corral.runtime.road import Road

KIT = os.path.dirname(failures.PACKAGE)


def main(config_line: bytes, inbox: Inbox, road: Road, parent: int) -> None:
    posix.die_with(parent)
    config = json.loads(config_line)
    os.environ.update(config.get("environ") or {})
    if road.redactor is not None:
        os.environ.update(config["secrets"])
        os.environ["CORRAL_SECRETS"] = ",".join(config["secrets"])
        failures.hide(road.redactor)
    os.environ["CORRAL_FRAMES_FD"] = str(road.words_in)
    os.environ["CORRAL_FRAMES_INODE"] = str(os.fstat(road.words_in).st_ino)
    # Whatever Python a job starts finds `corral.job`, and what the user put on the path.
    paths = (KIT, os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path += [path for path in config.get("packages", ()) if path not in sys.path]
    enforced = sandbox.apply(config, KIT)
    # The job's own process is open to the job's own tools; Landlock closes it to other jobs.
    posix.close_to_others(closed=False)
    road.send(frame("ready", pid=parent, enforced=enforced))
    # After the answer: loading cloudpickle takes as long as everything before it.
    from corral.runtime.attempt_loop import AttemptLoop
    from corral.runtime.posix_state import PosixState
    from corral.runtime.run_folder import HeldFolder

    bounds = sandbox.bounds(config, KIT, enforced)
    AttemptLoop(inbox, road, bounds, PosixState, HeldFolder).run()
