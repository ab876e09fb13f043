"""Runs a command under the file rules of a job: `python -I confined.py JSON COMMAND…`.

Building an environment runs code of whoever published a requirement, so it gets no more of the
machine than a job does.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    config, command = json.loads(sys.argv[1]), sys.argv[2:]
    if sys.platform != "win32":
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        sys.path.insert(0, os.path.dirname(package))  # wherever this Corral was installed
        from corral.runtime import sandbox

        sandbox.apply({**config, "isolate": True}, kit=os.path.dirname(command[0]))
        os.execv(command[0], command)  # noqa: S606
    sys.exit("There is nothing here to confine a command with.")


if __name__ == "__main__":
    main()
