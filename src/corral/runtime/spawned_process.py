"""The inner of a runner's two processes where nothing is forked: started anew, and not confined.

It tells that nothing is enforced: for that it takes Landlock and limits, which Windows has not.
"""

from __future__ import annotations

import os
import sys

from corral.runtime.channels.frames import frame
from corral.runtime.channels.line import LoopbackLine
from corral.runtime.hints import Bounds
from corral.runtime.process import system

NOTHING = {"files": "", "memory": "", "cpu": "", "privileges": ""}


def main() -> int:
    port = int(sys.argv[2])
    token, mark = sys.stdin.readline().split()
    system.hold_descendants()
    line = LoopbackLine(port, token, mark)
    config = line.config
    os.environ["CORRAL_WORDS"] = f"{port} {token}"
    line.send(frame("ready", pid=os.getpid(), enforced=NOTHING))

    from corral.runtime.attempt_loop import AttemptLoop, set_up
    from corral.runtime.files.run_folder import RunFolder
    from corral.runtime.process.state import ProcessState

    set_up(config, line)
    sys.argv = sys.argv[:1]
    bounds = Bounds((config.get("limits") or {}).get("memory_bytes") or 0)
    code = 1
    try:
        loop = AttemptLoop(line, line, bounds, ProcessState, RunFolder)
        line.listen()
        loop.run()
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)  # Threads that an attempt left behind would be waited for otherwise.
