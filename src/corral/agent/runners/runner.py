"""One runner process as the agent holds it: its directory, its pipes, its frames, its end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import msgspec

from corral.agent.environments.builder import Environment
from corral.agent.runners.cgroups import Cgroup
from corral.agent.runners.frames import AnyFrame, Ready, decode_lines
from corral.agent.runners.orders import way_of_orders
from corral.agent.runners.process_tree import Tree
from corral.agent.system import scopes_signals
from corral.core.malformed import MALFORMED
from corral.runtime.files.removal import remove_tree
from corral.runtime.files.run_folder import CODE, PARTS, SETTLED_NS
from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.agent.attempts.attempt import HeldAttempt

STDERR_KEPT = 4000
LINE_LIMIT = 2 << 20
"""About twice the longest traceback with its exception. Bounds messages about attempts, too."""
AHEAD_S = 0.004
MOST_AHEAD = 32
DRAIN_S = 1.0
"""How long the last output of a dead runner is waited for."""


class _Named(msgspec.Struct):
    job: str
    attempt: int


_decode_name = msgspec.json.Decoder(_Named).decode


Owner = tuple[str, bool]
"""The user whose job it is, and whether an admin said so and not that user's own token."""
NOBODY: Owner = ("", False)
Stamps = tuple[tuple[int, int], ...]


class Makeup(NamedTuple):
    """Everything that makes the process. Attempts with equal makeups may share a warm one."""

    environment: str
    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    memory_gb: float = 0.0
    cpus: int = 0
    """How many processors it is pinned to; 0 means all."""
    secrets: str = ""
    """A digest of the secrets in its environment, names and values; it says nothing of either."""
    owner: Owner = NOBODY
    """What ran in a process may have left something there that reads or changes what runs next."""
    reads: tuple[str, ...] = ()
    code: str = ""
    """The sha256 of the caller's own modules: a process that has imported one version of them never
    runs another."""


class RunDirectory:
    """What an attempt works in: `work` (its current directory and home), `output`, `tmp`.

    It belongs to a runner, because what a runner may write to is settled when its process starts.
    The runner empties it between attempts; one that says so and did not is not used again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._parts = tuple(os.path.join(self.path, part) for part in PARTS)
        self.work, _, self.tmp = self._parts
        self._untouched: Stamps | None = None
        """What the directories looked like when they were last known to be empty."""

    def make(self) -> None:
        os.makedirs(self.path, exist_ok=True)
        for part in self._parts:
            os.mkdir(part, 0o700)

    def empty(self) -> bool:
        """Whether it is as it was made. Asked after every attempt, and for most of them a look at
        the times of change is enough: a job can set other times, but not those."""
        try:
            stamps = self._stamps()
            if stamps == self._untouched:
                return True
            self._untouched = None
            if not self._listed_empty():
                return False
        except OSError:
            return False
        # Windows stamps only when something was made, not when it changed.
        settled = time.time_ns() - max(changed for _, changed in stamps) > SETTLED_NS
        if settled and sys.platform != "win32":
            self._untouched = stamps
        return True

    def _stamps(self) -> Stamps:
        found = [os.lstat(path) for path in (self.path, *self._parts)]
        return tuple((status.st_ino, status.st_ctime_ns) for status in found)

    def _listed_empty(self) -> bool:
        with os.scandir(self.path) as entries:
            found = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        if found - {CODE} != set(PARTS):
            return False
        return not any(os.listdir(part) for part in self._parts)

    def remove(self) -> None:
        with suppress(OSError):
            remove_tree(self.path)


class Listener(Protocol):
    def heard(self, runner: Runner, frames: list[AnyFrame]) -> None: ...
    def gone(self, runner: Runner) -> None: ...


class Runner(asyncio.SubprocessProtocol):
    """Runs one attempt at a time; short ones are sent ahead of their turn. Its supervisor may
    have been started before anybody knew for whom: its first line tells it."""

    makeup: Makeup
    environment: Environment

    def __init__(
        self, name: str, directory: RunDirectory, home: str, *, spawn: bool, group: Cgroup | None
    ) -> None:
        self.name = name
        self.group = group
        self._home = home
        self.directory = directory
        self._listener: Listener | None = None
        self.orders: deque[HeldAttempt] = deque()
        """Sent and not answered; the first is the one that runs, as far as we have heard."""
        self._spawn = spawn
        self._way = way_of_orders(self.write, spawn=spawn)
        self.typical_s = 0.0
        """How long its attempts take, lately; 0 before it has answered one."""
        self.processors: tuple[int, ...] = ()
        self.used = 0
        self.models: tuple[str, ...] = ()
        """What its last attempt worked with: a function that is called again finds it loaded."""
        self.idle_since = 0.0
        self.tree: Tree | None = None
        """Its processes, once it was started."""
        self.code: int | None = None
        self.stderr = b""
        self.garbled = False
        """What it said could not be read; nothing more of it is."""
        self.ending = False
        self.settled = False
        """While it is being ended: its job has come to an end by itself."""
        self.spawned = asyncio.Event()
        self.over = asyncio.Event()
        self.ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._lines: list[bytes] = []
        self._rest = b""
        self._paused = False
        self._stdout_closed = False

    @property
    def attempt(self) -> HeldAttempt | None:
        return self.orders[0] if self.orders else None

    def lives(self) -> bool:
        """Asked of the system: what tells us of its end may still be on its way."""
        return not self.over.is_set() and (self.tree is None or self.tree.lives())

    def held_by(self, enforced: Mapping[str, str]) -> str:
        """What keeps together all that its job starts, so that none of it outlives the runner."""
        if not enforced.get("files"):
            return "process_tree"  # which a job can leave: nothing keeps it from writing elsewhere
        if self.group is not None:
            return "cgroup"
        return "landlock" if scopes_signals() else "process_tree"

    def order(self, attempt: HeldAttempt, line: bytes) -> None:
        self.orders.append(attempt)
        self._way.send(line)

    def takes_ahead(self) -> bool:
        """Whether one more order may wait in it: only as many as it goes through in a moment."""
        if not self._way.ahead:
            return False
        ahead = AHEAD_S / self.typical_s if self.typical_s else 0
        return len(self.orders) <= min(ahead, MOST_AHEAD)

    def take_back(self, *, everything: bool = False) -> list[HeldAttempt]:
        """The attempts that it had not begun, and now never will. The first one stays, unless
        `everything` is taken or the runner has just taken a later one. Of those left only the
        last can still be running: the ends of the others are on their way."""
        if len(self.orders) <= (0 if everything else 1):
            return []
        untaken = {}
        for packet in self._way.take_back():
            with suppress(*MALFORMED):  # a part of a large order, which counts as begun
                named = _decode_name(packet)
                untaken[named.job, named.attempt] = packet
        back = [attempt for attempt in self.orders if attempt.key in untaken]
        if len(back) == len(self.orders) and not everything:
            self._way.send(untaken[back.pop(0).key])
        for attempt in back:
            self.orders.remove(attempt)
        return back

    def begin(
        self, makeup: Makeup, environment: Environment, listener: Listener, first_line: bytes
    ) -> None:
        """From here on it is somebody's."""
        self.makeup, self.environment, self._listener = makeup, environment, listener
        self.write(first_line)

    async def spawn(self, command: list[str], environ: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.subprocess_exec(
                lambda: self,
                *command,
                self._way.word,
                env=environ,
                cwd=self.directory.path,
                pass_fds=self._way.inherited,
                **system.APART,
            )
            if self.group is not None:
                await self._enter(self.group)
        except (OSError, ValueError) as error:
            self.stderr = str(error).encode()
            self._finish()
        finally:
            self.spawned.set()

    def write(self, line: bytes) -> None:
        if self._stdin is None:
            self._lines.append(line)
        else:
            self._stdin.write(line)

    def close_stdin(self) -> None:
        """The runner takes this as the death of its agent, and ends itself with all it started."""
        if self._stdin is not None:
            self._stdin.close()

    def ask_to_stop(self) -> None:
        """To a forked runner this comes as a signal to its whole tree, from `Tree.end`."""
        if self._spawn:
            self.write(b'{"stop":true}\n')

    def pause(self) -> None:
        """Stop reading: the job then waits in its own writes."""
        if not self._paused and self._stdout is not None:
            self._paused = True
            self._stdout.pause_reading()

    def resume(self) -> None:
        if self._paused and self._stdout is not None:
            self._paused = False
            self._stdout.resume_reading()

    @property
    def _stdout(self) -> asyncio.ReadTransport | None:
        if self._transport is None or self._stdout_closed:
            return None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._way.close()

    # --- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.tree = Tree(
            self._transport.get_pid(),
            home=self._home,
            runner=self.name,
            signals=not self._spawn,
            group=self.group,
        )
        if self.group is None:
            self._say_first()

    async def _enter(self, group: Cgroup) -> None:
        """Beside the start of its interpreter, which takes longer; so nobody waits for this."""
        assert self.tree is not None
        if not await asyncio.to_thread(group.take_in, self.tree.pid):
            group.remove()
            self.group = self.tree.group = None
        self._say_first()

    def _say_first(self) -> None:
        """Until then it starts nothing."""
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:  # it is not gone already
            self._stdin = cast(asyncio.WriteTransport, stdin)
            self._stdin.write(b"".join(self._lines))
            self._lines.clear()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self.stderr = (self.stderr + data)[-STDERR_KEPT:]
            return
        if self._rest:
            data = self._rest + data
        cut = data.rfind(b"\n") + 1
        if cut == len(data):
            self._rest = b""
        else:
            self._rest = data[cut:]
            if len(self._rest) > LINE_LIMIT:
                return self._nonsense()
            data = data[:cut]
        if data:
            try:
                frames = decode_lines(data)
            except MALFORMED:
                return self._nonsense()
            if frames and not self.ready.done() and isinstance(frames[0], Ready):
                self.ready.set_result(frames[0].enforced)
            if self._listener is not None:
                self._listener.heard(self, frames)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._stdout_closed = True
            if self.code is not None:
                self._finish()
            else:
                # Without it the runner cannot report: it is as good as dead.
                asyncio.get_running_loop().call_later(DRAIN_S, self._finish)

    def process_exited(self) -> None:
        assert self._transport is not None
        self.code = self._transport.get_returncode()
        if self.tree is not None:
            self.tree.exited_at = time.time()
        if self._stdout_closed:
            self._finish()
        else:
            asyncio.get_running_loop().call_later(DRAIN_S, self._finish)

    def _finish(self) -> None:
        if self.over.is_set():
            return
        if self._paused and not self.ending:
            # What it said last is still unread.
            asyncio.get_running_loop().call_later(DRAIN_S, self._finish)
            return
        self.over.set()
        if self._transport is not None:
            self._transport.close()  # it is over, and nobody else may be left to say so
        if not self.ready.done():
            self.ready.set_result({})
        if not self.ending and self._listener is not None:
            self._listener.gone(self)

    def _nonsense(self) -> None:
        self.garbled = True
        self._rest = b""
        self._stdout_closed = True
        self._finish()
