"""What the tests need from the system beyond Python: found, installed, or named.

`make test` runs this first. As root on Debian or Ubuntu it installs what is missing; elsewhere it
names the package, and the tests that need it are skipped with that reason in the summary (under
CORRAL_TEST_ALL=1 a skip is a failure, see conftest).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = {
    "strace": "crash tests end the controller at its Nth system call with it",
}
"""Program (and Debian package) -> what it is for."""


def missing() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program) is None]


def install(programs: list[str]) -> bool:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (["install", "-y", "-q", *programs], ["update", "-q"])
    for arguments in (steps[0], steps[1], steps[0]):
        done = subprocess.run(["apt-get", *arguments], env=environ, capture_output=True, text=True)
        if done.returncode == 0 and not missing():
            return True
    print(done.stderr.strip()[-500:], file=sys.stderr)
    return False


def main() -> int:
    absent = missing()
    if not absent:
        return 0
    if sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"tests: installing {', '.join(absent)}.")
        if install(absent):
            return 0
    for program in missing():
        print(f"tests: {program} is missing: {PROGRAMS[program]}.", file=sys.stderr)
    print(f"tests: install {', '.join(missing())} to run them all.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
