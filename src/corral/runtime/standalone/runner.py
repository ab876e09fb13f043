"""One runner process, as this process holds it: what it is told, its pipes, its frames, its end."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from corral.runtime.channels.configuration import encode
from corral.runtime.channels.frames import SURVIVED
from corral.runtime.environments.kit import RUNNER
from corral.runtime.hints import GIB
from corral.runtime.order import Order
from corral.runtime.process import system
from corral.runtime.standalone.environment import StandaloneEnvironment
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket

PACKET = 32 * 1024
STDERR_KEPT = 4000
LINE_LIMIT = 2 << 20
SUPERVISOR_S = 6.0
"""How long a supervisor is waited for that ends what is below it; it gives up sooner itself."""
NOT_FOR_JOBS = ("CORRAL_", "UV_", "PIP_", "GIT_", "XDG_")
"""What this process is told, and what builds need: how to reach registries, with which password."""

Frame = dict[str, Any]


class StandaloneRunner:
    def __init__(
        self,
        order: AttemptOrder,
        ticket: AttemptTicket,
        environment: StandaloneEnvironment,
        folder: str,
    ) -> None:
        self._spawn = ticket.spawn or sys.platform == "win32"
        self.stderr = b""
        self.garbled = False
        self._way: socket.socket | None = None
        theirs: socket.socket | None = None
        if sys.platform != "win32" and not self._spawn:
            self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        word = "spawn" if theirs is None else str(theirs.fileno())
        environ = os.environ.items()  # of which the job finds this: whoever starts us decides
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(environment.kit, RUNNER), word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: text for name, text in environ if not name.startswith(NOT_FOR_JOBS)},
            cwd=folder,
            pass_fds=() if theirs is None else (theirs.fileno(),),
            **system.APART,
        )
        if theirs is not None:
            theirs.close()
        self._saying = threading.Lock()
        self._listening = threading.Thread(target=self._hear_errors, daemon=True)
        self._listening.start()
        config = _configuration(order, ticket, environment, folder)
        self.limit: int = config["limits"]["memory_bytes"] or 0
        """Bytes that its processes may hold; 0: any number."""
        self._write(encode(config))

    def say(self, word: Mapping[str, Any]) -> None:
        self._write(_line(word))

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with self._saying, contextlib.suppress(OSError, ValueError):  # its end is told elsewhere
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def order(self, order: Order[Any]) -> None:
        line = _line(order)
        if self._way is None:
            return self._write(line)
        with contextlib.suppress(OSError):
            for start in range(0, len(line), PACKET):
                self._way.send(line[start : start + PACKET])

    def frames(self, heard: Callable[[Frame], None]) -> None:
        """Hands on what it says, until it says no more or what is no frame."""
        assert self.process.stdout is not None
        out: IO[bytes] = self.process.stdout
        while line := out.readline(LINE_LIMIT):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError
                heard(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                self.garbled = True
                return

    def _hear_errors(self) -> None:
        assert self.process.stderr is not None
        while data := os.read(self.process.stderr.fileno(), 1 << 16):
            self.stderr = (self.stderr + data)[-STDERR_KEPT:]

    def memory_bytes(self) -> int:
        """What its processes hold. Pages shared by forks count once, which is looked up only when
        the cheap sum is over the limit. 0 where the system does not say."""
        tree = self._tree()
        held = sum(_field(pid, "status", b"VmRSS:") for pid in tree)
        if held <= self.limit:
            return held
        return sum(_field(pid, "smaps_rollup", b"Pss:") for pid in tree)

    def _tree(self) -> list[int]:
        """All its processes, the supervisor last; none where only the system can list them."""
        if sys.platform == "win32":
            return []
        return [*system.descendants(self.process.pid), self.process.pid]

    # --- ending ---

    def ask_to_end(self) -> None:
        """A signal to everything it started, or a word where there are none."""
        if self._spawn:
            return self.say({"stop": True})
        for pid in self._tree():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def end(self) -> bool:
        """With everything that it ever started; False where something is known to be left."""
        assert self.process.stdin is not None
        with self._saying, contextlib.suppress(OSError):
            self.process.stdin.close()  # it takes that for our death
        if sys.platform != "win32" and not self._spawn:
            with contextlib.suppress(OSError):
                self.process.send_signal(signal.SIGHUP)
        try:
            self.process.wait(SUPERVISOR_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        ended = system.kill_descendants()  # what was below it hangs here now
        self._listening.join(1.0)
        if self._way is not None:
            self._way.close()
        return ended and self.process.returncode != SURVIVED


def _configuration(
    order: AttemptOrder, ticket: AttemptTicket, environment: StandaloneEnvironment, folder: str
) -> dict[str, Any]:
    return {
        "limits": {"memory_bytes": int(order.needs.get("memory_gb", 0.0) * GIB) or None},
        "isolate": ticket.isolate,
        "read_paths": [
            environment.kit,
            environment.path,
            environment.base,
            *([ticket.certificate] if ticket.certificate else ()),
            *ticket.read_paths,
            *ticket.model_paths,
        ],
        "write_paths": [folder, *ticket.write_paths],
        "python": environment.python,
        "environ": _environ(order, ticket, environment, folder),
        # By its stdin: not in what the system shows of the process, and never to a log.
        **({"secrets": order.secrets} if order.secrets else {}),
    }


def _environ(
    order: AttemptOrder, ticket: AttemptTicket, environment: StandaloneEnvironment, folder: str
) -> dict[str, str]:
    programs, path = os.path.dirname(environment.python), os.environ.get("PATH", "")
    work, tmp = os.path.join(folder, "work"), os.path.join(folder, "tmp")
    document, models = order.document, ticket.model_paths
    told = {
        "PATH": f"{programs}{os.pathsep}{path}" if path else programs,
        "VIRTUAL_ENV": environment.path,
        **dict.fromkeys(system.HOMES, work),
        **dict.fromkeys(system.TEMPORARY, tmp),
        **(document.get("env", {}) if document["work"]["type"] != "pipeline" else {}),
        **({"CORRAL_MODEL_PATHS": os.pathsep.join(models)} if models else {}),
    }
    if ticket.devices is not None:
        # An attempt sees the GPUs it holds and no others, so these are not the user's to set.
        devices = ",".join(ticket.devices)
        told |= {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices}
    return told


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _field(pid: int, file: str, name: bytes) -> int:
    """Bytes that the system says of a process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", "rb") as lines:
        for line in lines:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def message_of(frame: Frame) -> tuple[dict[str, Any], int] | None:
    """What is told of a frame while the attempt runs, and what that adds to its number; None for
    those that say something else. KeyError, TypeError or ValueError where a frame is none."""
    kind = frame["frame"]
    if kind == "output":
        if data := frame.get("data"):
            size = len(binascii.a2b_base64(data))
            return {"type": "output", "stream": frame["stream"], "data": data}, size
        text = frame["text"]
        size = len(str.encode(text))  # TypeError where it is no text
        return {"type": "output", "stream": frame["stream"], "text": text}, max(1, size)
    if kind == "progress":
        fraction, message = frame["fraction"], frame["message"]
        return {"type": "progress", "fraction": fraction, "message": message}, 1
    if kind == "metric":
        return {"type": "progress", "metrics": frame["values"], "step": frame["step"]}, 1
    return None


def end_of(frame: Frame) -> dict[str, Any]:
    """The result, or the failure, in a frame that says how the job ended; it raises likewise."""
    if frame["frame"] == "result":
        result: dict[str, Any] = frame["result"]
        return result
    failure: dict[str, Any] = frame["failure"]
    for name in ("code", "message"):
        str.encode(failure[name])
    return failure


def held_of(frame: Frame) -> int:
    """How much memory a process of the job held that was killed, at most; 0 where nobody says."""
    held = frame.get("held_bytes", 0)
    if type(held) is not int or held < 0:
        raise ValueError("a number of bytes")
    return held
