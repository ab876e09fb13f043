"""Runs a command under the file rules of a job: `python -I -S run_command.py JSON COMMAND…`.

Building an environment runs code of whoever published a requirement, so it gets no more of the
machine than a job does, and none of its processes outlives it: this one runs no code of a build,
and ends all below it when the command ends or when whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

assert sys.platform != "win32"


def main() -> int:
    config, command = json.loads(sys.argv[1]), sys.argv[2:]
    sandbox = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(sandbox))
    sys.path.insert(0, os.path.dirname(package))  # wherever this Corral was installed
    from corral.runtime.sandbox import rules

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if config.get("cgroup") and not os.read(0, 1):
        return 1  # Whoever was to put us there first is gone.
    hold = rules.Hold(config)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(config, command, parent)
        except BaseException as error:
            os.write(2, f"{command[0]} could not be started: {error}\n".encode())
        finally:
            os._exit(1)
    status = _watch(pid)
    ended = hold.kill()
    if status is None:
        hold.end()
    if not ended:
        os.write(2, b"Processes of it would not end.\n")
        return 1
    return 1 if status is None else abs(os.waitstatus_to_exitcode(status))


def _become(config: dict[str, Any], command: list[str], parent: int) -> NoReturn:
    from corral.runtime.process import posix
    from corral.runtime.sandbox import rules

    posix.die_with(parent)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # Of all on this machine a build is the one to do over. Some containers refuse it.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    rules.apply(config, kit=os.path.dirname(command[0]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)  # noqa: S606


def _watch(pid: int) -> int | None:
    """The wait status of the command; None when whoever started us is gone."""
    from corral.runtime.process import posix

    ended = posix.exit_fd(pid)
    poll = select.poll()
    poll.register(0, 0)  # A hang-up is reported without asking.
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while True:
        if any(fd == 0 for fd, _ in poll.poll(None if ended is not None else 50)):
            return None
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            return status


if __name__ == "__main__":
    sys.exit(main())
