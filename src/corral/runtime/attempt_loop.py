"""One attempt after another in a confined process: begin, run, tell, clean up."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from corral import job
from corral.runtime import failures, hints
from corral.runtime.cancellation import Cancellation
from corral.runtime.channels.frames import (
    FETCHING,
    STARTED,
    decode,
    error_frame,
    frame,
    stderr_frame,
)
from corral.runtime.files import artifacts
from corral.runtime.functions import Functions, refuse_secrets, result_bytes
from corral.runtime.sandbox.unseen import UnseenFolders

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from mmap import mmap

    from corral.runtime.channels.redaction import Redactor
    from corral.runtime.files.run_folder import RunFolder
    from corral.runtime.files.transfer import Transfer
    from corral.runtime.hints import Bounds
    from corral.runtime.order import Document, FunctionWork, Order, OrderBytes, ScriptWork, Work
    from corral.runtime.pipeline.run import Pipelines
    from corral.runtime.process.state import ProcessState

SEP = os.sep


# What the loop asks of its two ways, whichever kind of runner it lives in. Forked: `inbox.Inbox`
# and `road.Road`. Spawned, as on Windows: `line.LoopbackLine` is both.


class InboxPort(Protocol):
    def next(self) -> bytes | None: ...
    def cancel_came(self, job: str = "", attempt: int = 0) -> bool: ...
    def wait_for(self, process: subprocess.Popen[bytes], cancellation: Cancellation) -> bool: ...


class RoadPort(Protocol):
    redactor: Redactor | None

    @property
    def page(self) -> mmap | bytearray: ...
    @property
    def for_children(self) -> Sequence[int]:
        """Descriptors that a script inherits to say its words."""

    def hide(self, redactor: Redactor) -> None: ...
    def capture(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, data: bytes) -> None: ...
    def end(self, data: bytes) -> None: ...


def set_up(config: dict[str, Any], road: RoadPort) -> None:
    """What all attempts in this process find: its secrets, and where Python looks for modules."""
    if secrets := config.get("secrets"):
        from corral.runtime.channels.redaction import Redactor

        redactor = Redactor(secrets)
        road.hide(redactor)
        failures.hide(redactor)
        os.environ.update(secrets)
        os.environ["CORRAL_SECRETS"] = ",".join(secrets)
    # Whatever Python a job starts finds `corral.job`, and what the user put on the path.
    paths = (failures.KIT, os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    sys.path += [path for path in config.get("packages", ()) if path not in sys.path]


class AttemptLoop:
    def __init__(
        self,
        inbox: InboxPort,
        road: RoadPort,
        bounds: Bounds,
        process: Callable[[RoadPort], ProcessState],
        open_folder: Callable[[str], RunFolder],
    ) -> None:
        self._pid = os.getpid()
        self._inbox = inbox
        self._road = road
        self._bounds = bounds
        self._cancellation = Cancellation(inbox, road.page)
        self._functions = Functions(self._cancellation, bounds.memory_bytes)
        self._unseen = UnseenFolders([*bounds.reads, *bounds.writes])
        if bounds.files:
            self._unseen.watch()
        self._process = process(road)
        self._open_folder = open_folder
        self._order: Order[Document]
        self._pipelines: Pipelines | None = None
        self._way: Transfer | None = None
        self._way_before: Transfer | None = None
        self._folder: RunFolder | None = None
        self._cold = True
        self._said = False

    def run(self) -> None:
        """Attempts until the agent closes the line, or until one must be the last here."""
        while (line := self._inbox.next()) is not None:
            if self._attempt(decode(line)):
                return
            self._cold = False

    def _attempt(self, order: Order[Document]) -> bool:
        cancellation, road = self._cancellation, self._road
        road.begin()
        cancellation.begin(order["job"], order["attempt"])
        self._unseen.begin()
        self._order = order
        self._said = False
        work = order["document"]["work"]
        failure: failures.Failure | None = None
        data: bytes | None = None
        try:
            # A cancel may follow its order at once. It is read before a signal can raise, which
            # would lose the line; from there on a signal finds the attempt.
            told = cancellation.told()
            cancellation.interruptible = True
            if told or cancellation.signalled:
                raise job.Cancelled
            self._enter(order)
            data = self._run(work, order)
            cancellation.interruptible = False
        except BaseException as error:
            cancellation.interruptible = False
            failure = self._failure(error)
        if os.getpid() != self._pid:
            os._exit(0)  # A child that user code forked, and that came back here.
        return self._finish(data, failure, last=work["type"] == "script")

    def _run(self, work: Work, order: Order[Document]) -> bytes | None:
        if work["type"] == "script":
            self._script(work, order)
            return None
        self._place_inputs(order)
        if work["type"] == "function":
            self._lay_out_code(work, order)
            return self._functions.call(work, self._transfer, self._started)
        if work["type"] == "pipeline":
            if self._pipelines is None:
                from corral.runtime.pipeline.run import Pipelines

                self._pipelines = Pipelines()
            return self._pipelines.run(work, order, self._transfer, self._started)
        assert_never(work)

    def _place_inputs(self, order: Order[Document]) -> None:
        if files := order.get("inputs"):
            assert self._folder is not None
            self._folder.place(files, confined=self._bounds.files)

    def _lay_out_code(self, work: FunctionWork, order: Order[Document]) -> None:
        """Once: all attempts in this process have the same, or none."""
        code = work.get("code")
        if code is None or self._functions.own_code:
            return
        from corral.runtime.files import own_code

        folder = own_code.lay_out(code, order.get("code", ""), order["work_dir"], self._transfer)
        self._process.look_first_in(folder)
        self._functions.own_code = folder
        self._bounds = self._bounds._replace(own_code=folder)

    def _script(self, work: ScriptWork, order: Order[Document]) -> None:
        from corral.runtime.scripts import script

        folder = f"{order['work_dir']}{SEP}work"
        command, sent = script.prepare(work, folder, self._transfer)
        self._place_inputs(order)
        # From here on a cancel is the script's to hear; we stay to tell how it ended.
        cancellation = self._cancellation
        cancellation.interruptible = False
        if cancellation.look():  # A signal that came before the script existed did not reach it.
            raise job.Cancelled
        self._started()
        script.run(
            command,
            folder,
            self._road.for_children,
            self._bounds._replace(sent=sent),
            lambda process: self._inbox.wait_for(process, cancellation),
        )

    def _started(self) -> None:
        """User code is next. A warm process says so only after it said that it is not so yet."""
        if self._cold or self._said:
            self._road.send(STARTED)
        self._said = True

    def _transfer(self) -> Transfer:
        """This attempt's way to the controller, made when something is first sent or fetched."""
        if self._way is None:
            if not self._said:
                self._said = True
                self._road.send(FETCHING)
            from corral.runtime.files.transfer import RETRY_FOR_S, Transfer

            order, endpoint = self._order, self._order["endpoint"]
            self._way = Transfer(
                endpoint["url"],
                order["token"],
                order["job"],
                order["attempt"],
                certificate=endpoint.get("certificate", ""),
                artifacts=endpoint.get("artifacts", ""),
                patience_s=endpoint.get("patience_s", RETRY_FOR_S),
                before=self._way_before,
            )
            self._way_before = None
        return self._way

    def _failure(self, error: BaseException) -> failures.Failure:
        cancellation = self._cancellation
        stopped = failures.is_a(error, job.Cancelled)
        if stopped or (cancellation.signalled and _is_task_cancelled(error)):
            if cancellation.told():
                return failures.cancelled()
            if cancellation.signalled:
                return failures.by_signal(signal.SIGTERM)
        asked = cancellation.asked
        failure = failures.from_exception(error, cancelled=asked)
        if not asked:
            failure["message"] = hints.add(failure["message"], error, self._bounds)
        return failure

    def _finish(self, data: bytes | None, failure: failures.Failure | None, *, last: bool) -> bool:
        """Everything after user code: its output, its files, its result, a clean process."""
        self._process.quiet()
        result: OrderBytes | None = None
        folder = self._folder
        untouched = folder is not None and folder.untouched()
        if (sender := self._cancellation.state.sender) is not None:
            sender.finish()
        try:
            if not untouched:
                output = f"{self._order['work_dir']}{SEP}output"
                kept = self._cancellation.state.kept
                artifacts.keep(output, kept, self._transfer, self._road)
            if failure is None and data is not None:
                if self._road.redactor is not None:
                    refuse_secrets(data, self._road.redactor)
                result = result_bytes(data, self._transfer)
        except Exception as error:
            if failure is None:
                failure = failures.from_exception(error)
            else:
                words = f"corral: not all files of the job were kept: {error}\n"
                self._road.send(stderr_frame(words, self._road.redactor))
        for way in self._cancellation.state.transfers.values():
            way.close()
        if self._way is not None:
            self._way_before, self._way = self._way, None
        retire = last or self._spent(failure)
        if not (retire or untouched):
            retire = folder is None or not folder.cleared()
        if failure is not None:
            if self._road.redactor is not None:
                failure = failures.redacted(failure, self._road.redactor)
            end = error_frame(failure, retire=retire)
        else:
            end = frame("result", result=result, retire=retire)
        self._road.end(end)
        if not retire:
            self._process.restore()
            if failure is not None:
                gc.collect()  # A traceback may hold the job's tensors in a cycle.
        return retire

    def _spent(self, failure: failures.Failure | None) -> bool:
        """Whether something of this attempt is left in the process, or it was stopped midway."""
        return (
            self._cancellation.signalled
            or self._process.children_left()
            or self._process.threads_left()
            or self._process.bounds_moved()
            or (failure is not None and failures.spoils(failure))
        )

    def _enter(self, order: Order[Document]) -> None:
        """The surroundings that the attempt finds; `ProcessState.restore` undoes them."""
        folder, endpoint = order["work_dir"], order["endpoint"]
        told = {
            "CORRAL_JOB_ID": order["job"],
            "CORRAL_ATTEMPT": str(order["attempt"]),
            "CORRAL_URL": endpoint["url"],
            "CORRAL_TRANSFER_TOKEN": order["token"],
            "CORRAL_CERTIFICATE": endpoint.get("certificate", ""),
            "CORRAL_ARTIFACTS": endpoint.get("artifacts", ""),
            "CORRAL_CHECKPOINT": order.get("checkpoint", ""),
            "CORRAL_CORRELATION_ID": order.get("correlation_id", ""),
            "CORRAL_OUTPUT_DIR": f"{folder}{SEP}output",
            "TMPDIR": f"{folder}{SEP}tmp",
        }
        if "patience_s" in endpoint:
            told["CORRAL_PATIENCE_S"] = str(endpoint["patience_s"])
        self._process.enter(
            told, order["document"].get("env", {}) if "renderer" not in order else {}
        )
        tempfile = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile.tempdir = None  # type: ignore[attr-defined] # It remembers the last attempt's.
        if self._folder is None or self._folder.path != folder:
            if self._folder is not None:
                self._folder.close()
            self._folder = self._open_folder(folder)
        self._folder.enter()


def _is_task_cancelled(error: BaseException) -> bool:
    """asyncio is not imported just to ask."""
    return failures.type_name(type(error)) == "asyncio.exceptions.CancelledError"
