"""A filter of system calls: a job changes no limits of other processes, and reaches no keys.

`prlimit` asks only whose a process is, and Landlock does not know of it. With it a job would end
the controller, the agent and its own supervisor: by a bound on their processor time, for one.
Keyrings of a user are the same to all of the user's processes, whatever session they are in.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from corral.runtime.process import posix

assert sys.platform != "win32"

SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277}
"""The number of `seccomp` itself."""
PRLIMIT = {
    0xC000003E: 302,  # x86_64
    0x40000003: 340,  # i386, which runs there too
    0xC00000B7: 261,  # aarch64
    0x40000028: 369,  # arm, which runs there too
    0xC00000F3: 261,  # riscv64
}
"""The number of `prlimit64`, by how the kernel names an architecture."""
KEYS = {
    0xC000003E: (248, 249, 250),
    0x40000003: (286, 287, 288),
    0xC00000B7: (217, 218, 219),
    0x40000028: (309, 310, 311),
    0xC00000F3: (217, 218, 219),
}
"""Likewise of `add_key`, `request_key` and `keyctl`."""
X32 = 0x40000000
"""A bit of the numbers in one more way to call an x86_64 kernel."""

SET_FILTER, NO_SLOWDOWN = 1, 4
LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_AT, THIRD_AT = 0, 4, 16, 32
"""Where things are in what a filter sees; the process and the new limits are arguments."""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def filter_calls() -> bool:
    """For this process and all it will start; needs no_new_privs. Whether it holds."""
    number = SECCOMP.get(os.uname().machine)
    if number is None:
        return False
    steps = _steps()
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    return bool(posix.libc.syscall(ctypes.c_long(number), SET_FILTER, NO_SLOWDOWN, program) == 0)


def _steps() -> list[tuple[int, int, int, int]]:
    """Each: what to do, how many steps to leave out if so and if not, and with which number."""
    check = [
        (LOAD, 0, 0, FIRST_AT),
        (EQUAL, 4, 0, 0),  # itself
        (LOAD, 0, 0, THIRD_AT),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, THIRD_AT + 4),
        (EQUAL, 0, 1, 0),  # it only asks for them
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    steps = [(LOAD, 0, 0, ARCHITECTURE_AT)]
    for place, (architecture, number) in enumerate(PRLIMIT.items()):
        after = 8 * (len(PRLIMIT) - place - 1) + 1  # steps between the end of this one and `check`
        steps += [
            (EQUAL, 0, 7, architecture),
            (LOAD, 0, 0, NUMBER_AT),
            (AND, 0, 0, ~X32 & 0xFFFFFFFF),
            (EQUAL, after + 4, 0, number),
            *((EQUAL, after + 3 - n + 7, 0, key) for n, key in enumerate(KEYS[architecture])),
            (RETURN, 0, 0, ALLOW),
        ]
    return [*steps, (RETURN, 0, 0, ALLOW), *check]
