"""`corral up`, the real one, killed at its Nth system call that changes its home.

`python -m tests.crash.watched_up HOME N [FLAGS…]`; N = 0 never kills. Prints how far it came, as
JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.crash.sweep import Counter
from tests.crash.tracing import watch
from tests.live import CORRAL


def main(folder: str, number: str, *flags: str) -> None:
    command = [CORRAL, "up", "--grpc-port", "0", *flags]
    log = os.open(Path(folder).with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def program() -> None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Unless it is root that watches, it must be allowed to look.
        os.execve(command[0], command, {**os.environ, "CORRAL_INSPECTABLE": "true"})

    counter = Counter(Path(folder), int(number))
    status = watch(program, counter)
    killed = os.WIFSIGNALED(status)
    print(json.dumps({"count": counter.count, "killed": killed, "at": counter.last}))


if __name__ == "__main__":
    main(*sys.argv[1:])
