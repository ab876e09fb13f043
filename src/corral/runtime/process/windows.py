"""What the runtime asks of Windows and Python has no name for: a job object, and how to interrupt.

`posix` has the same names for what both kinds of system can do.
"""

from __future__ import annotations

import sys

assert sys.platform == "win32"

import ctypes
import os
import signal
import subprocess
import time
from ctypes import wintypes
from typing import Any

# A console of its own that nobody sees: Ctrl-Break reaches what shares a console.
APART: dict[str, Any] = {
    "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
}
HOMES, TEMPORARY = ("USERPROFILE", "HOME"), ("TEMP", "TMP")
OWN_GROUP = subprocess.CREATE_NEW_PROCESS_GROUP
"""A script can then be sent Ctrl-Break without everybody else on its console hearing it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGBREAK)
READ_NO_LINK = os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT

EXTENDED_LIMITS = 9
PROCESS_IDS = 3
KILL_ON_JOB_CLOSE = 0x2000
PROCESS_TERMINATE = 0x0001
MOST_PROCESSES = 4096
KILL_S = 5.0


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
        ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_ulonglong * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class _ProcessIds(ctypes.Structure):
    _fields_ = (
        ("NumberOfAssignedProcesses", wintypes.DWORD),
        ("NumberOfProcessIdsInList", wintypes.DWORD),
        ("ProcessIdList", ctypes.c_size_t * MOST_PROCESSES),
    )


def _kernel() -> ctypes.WinDLL:
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    handle, flag, number = wintypes.HANDLE, wintypes.BOOL, wintypes.DWORD
    signatures = {
        "CreateJobObjectW": (handle, (ctypes.c_void_p, wintypes.LPCWSTR)),
        "SetInformationJobObject": (flag, (handle, ctypes.c_int, ctypes.c_void_p, number)),
        "QueryInformationJobObject": (
            flag,
            (handle, ctypes.c_int, ctypes.c_void_p, number, ctypes.c_void_p),
        ),
        "AssignProcessToJobObject": (flag, (handle, handle)),
        "GetCurrentProcess": (handle, ()),
        "OpenProcess": (handle, (number, flag, number)),
        "TerminateProcess": (flag, (handle, wintypes.UINT)),
        "CloseHandle": (flag, (handle,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernel, name)
        function.restype, function.argtypes = result, arguments
    return kernel


def hold_descendants() -> None:
    """From here on whatever this process starts belongs to a job object that only this process
    holds: when it ends, in whatever way, the system ends them all."""
    kernel = _kernel()
    job = kernel.CreateJobObjectW(None, None)
    limits = _ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = KILL_ON_JOB_CLOSE
    done = (
        job
        and kernel.SetInformationJobObject(
            job, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        and kernel.AssignProcessToJobObject(job, kernel.GetCurrentProcess())
    )
    if not done:
        raise ctypes.WinError(ctypes.get_last_error())
    # The handle stays open for the life of this process, and is not inherited.


def _in_job() -> set[int]:
    """This process and everything below it: those of the innermost job object it belongs to."""
    listed = _ProcessIds()
    found = _kernel().QueryInformationJobObject(
        None, PROCESS_IDS, ctypes.byref(listed), ctypes.sizeof(listed), None
    )
    if not found:
        return set()
    return {int(pid) for pid in listed.ProcessIdList[: listed.NumberOfProcessIdsInList]}


def close_to_others() -> bool:
    return False


def held_by_children() -> int:
    """Nobody asks: nothing is killed there for want of memory."""
    return 0


def children_left() -> bool:
    return bool(_in_job() - {os.getpid()})


def kill_descendants() -> bool:
    """End everything else in the job object; False when some would not end in time."""
    kernel = _kernel()
    until = time.monotonic() + KILL_S
    while others := _in_job() - {os.getpid()}:
        for pid in others:
            if handle := kernel.OpenProcess(PROCESS_TERMINATE, False, pid):
                kernel.TerminateProcess(handle, 1)
                kernel.CloseHandle(handle)
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def interrupt(thread: int) -> None:
    """Wake the main thread with the signal that stops a job. SIGINT is the only one that also ends
    a sleep; raised in this thread, its handler still runs in the main one."""
    signal.raise_signal(signal.SIGINT)


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-Break, which reaches the whole group on the console that it shares with us."""
    process.send_signal(signal.CTRL_BREAK_EVENT)


_ucrt = ctypes.CDLL("ucrtbase")


def flush_c() -> None:
    """Write out what C code left in stdio buffers of the runtime that Python uses as well."""
    _ucrt.fflush(None)
