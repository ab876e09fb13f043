"""A program that is hard to end: it forks, its child leaves the session and does the same, and the
parent ends at once. Each of them lives for microseconds and has an empty environment.

Each writes a byte to descriptor 9, so that a test sees whether it goes on; a limit to the size of
that file ends it where nothing else does.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from pathlib import Path

JOB = """\
import os, resource, subprocess, sys, time
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 9)
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for _ in range(4 if os.environ["CORRAL_ATTEMPT"] == "1" else 0):
    subprocess.Popen([sys.argv[1]], env={}, pass_fds=[9], start_new_session=True, **quiet)
time.sleep(600)
"""
"""Starts four of them at its first attempt, and stays."""

CODE = bytes.fromhex(
    "b839000000 0f05"  # again: fork
    "85c0 7523"  # in the parent: on to the end
    "b870000000 0f05"  # setsid
    "b801000000 bf09000000 be00004000 ba01000000 0f05"  # write(9, …, 1)
    "85c0 7802"  # no more: on to the end
    "ebd2"
    "b83c000000 31ff 0f05"  # exit(0)
)
BASE = 0x400000
PYTHON = f"""\
#!{sys.executable} -IS
import os
while not os.fork():
    os.setsid()
    os.write(9, b"x")
os._exit(0)
"""


def write_chain(path: Path) -> Path:
    """The program, as machine code where we know how to write that."""
    if platform.machine() == "x86_64":
        size = 120 + len(CODE)
        head = b"\x7fELF\2\1\1" + bytes(9)
        head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        head += struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)
        path.write_bytes(head + CODE)
    else:
        path.write_text(PYTHON)
    os.chmod(path, 0o755)
    return path
