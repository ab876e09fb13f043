"""Who is at the other end of a unix socket, as far as the kernel knows.

Landlock does not keep a job from connecting to a socket whose path it knows, and /proc/net/unix
tells it every path. But each process of a job has `no_new_privs`, and nothing takes that off again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys

SO_PEERPIDFD = 77
"""Since Linux 6.5; Python has no name for it."""
_CREDENTIALS = struct.Struct("3i")
_MARK = b"\nNoNewPrivs:\t1\n"


def is_confined(pid: int | str) -> bool:
    """Whether this process may never gain privileges; also where nobody can tell."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return _MARK in file.read()
    except OSError:
        return True


def is_own_program(line: socket.socket, *, tell_jobs: bool) -> bool:
    """Whether the owner of this process (or root) is there, and, where jobs can be told from other
    programs, no job. It is a first hurdle: what counts is the token."""
    if sys.platform == "win32":
        return False
    try:
        told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(told)
        if uid not in (0, os.geteuid()):
            return False
        return not tell_jobs or not _is_job(line, pid)
    except OSError:
        return False


def _is_job(line: socket.socket, pid: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        pidfd = line.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return is_confined(pid)
    try:
        if is_confined(pid):
            return True
        # One that is gone may have left its number to another, whose status that was.
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return bool(ended.poll(0))
    finally:
        os.close(pidfd)
