"""Output: everything a job writes to descriptors 1 and 2, live, in order and before the end."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import groupby

import cloudpickle
import pytest

from tests.runtime.harness import Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_prints_of_every_kind_are_framed_before_the_end(runner: Runner) -> None:
    def speak() -> None:
        print("a line")
        print("no newline", end="")
        print("to stderr", file=sys.stderr)
        os.write(1, b"|raw")
        ctypes.CDLL(None).printf(b"|printf")
        subprocess.run(["echo", "|child"], check=True)

    frame = runner.run(speak)
    assert frame["frame"] == "result"
    assert not frame["retire"]
    # C's buffer is written out at the end; everything else in its order.
    assert runner.output() == b"a line\n|raw|child\nno newline|printf"
    assert runner.output("stderr") == b"to stderr\n"


def test_lines_stream_while_the_job_runs(runner: Runner) -> None:
    def two_steps(fifo: str) -> None:
        print("first")
        with open(fifo) as gate:
            gate.read()
        print("second")

    os.mkfifo(fifo := str(runner.folder / "gate"))
    runner.start(two_steps, fifo)
    assert runner.until("output")["text"] == "first\n"
    with open(fifo, "w"):
        pass
    assert runner.end()["frame"] == "result"
    assert runner.output() == b"second\n"


def test_bytes_that_are_no_text_arrive_unharmed(runner: Runner) -> None:
    junk = bytes(range(256)) * 4
    runner.value(lambda: os.write(1, junk))
    assert runner.output() == junk
    assert "data" in runner.kinds("output")[0]
    runner.value(lambda: print("grüße 🤠 " * 30_000))
    assert runner.output().decode() == "grüße 🤠 " * 30_000 + "\n"


def test_a_flood_is_framed_in_bounded_memory(runner: Runner) -> None:
    size = 150_000_000

    def flood() -> None:
        block = b"0123456789abcde\n" * 4096
        for _ in range(size // len(block)):
            os.write(1, block)

    runner.start(flood)
    total, frames = 0, 0
    while (frame := runner.next())["frame"] not in ("result", "error"):
        if frame["frame"] == "output":
            total += len(frame["text"])
            frames += 1
            assert len(frame["text"]) <= 65536
    assert total == size // 65536 * 65536
    with open(f"/proc/{runner.process.pid}/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 60_000, "the supervisor must not hold what it cannot pass on"


def test_a_slow_reader_holds_the_writer_back(runner: Runner) -> None:
    def fill(fifo: str) -> None:
        os.set_blocking(1, False)
        room = select.poll()
        room.register(1, select.POLLOUT)
        written = 0
        while room.poll(300):
            written += os.write(1, b"x" * 4096)
        with open(fifo, "w") as note:
            note.write(str(written))

    os.mkfifo(fifo := str(runner.folder / "note"))
    runner.start(fill, fifo)
    with open(fifo) as note:
        written = int(note.read())
    assert written < 2_000_000
    assert runner.end()["frame"] == "result"
    assert len(runner.output()) == written
    # A job that made its stdout non-blocking, as asyncio does, leaves no trace of that.
    runner.value(print, "z" * 3_000_000)
    assert len(runner.output()) == 3_000_001


def test_much_small_output_is_put_together(runner: Runner) -> None:
    def drizzle() -> None:
        for number in range(20_000):
            print(number)

    runner.value(drizzle)
    assert runner.output().count(b"\n") == 20_000
    assert len(runner.kinds("output")) < 400


def test_c_code_that_holds_pythons_lock_may_print_more_than_a_pipe_takes(runner: Runner) -> None:
    def printing() -> int:
        # PyDLL keeps the interpreter locked during the call, as many extensions do.
        puts = ctypes.PyDLL(None).puts
        line = b"y" * 1_000_000
        return sum(puts(line) > 0 for _ in range(5))

    assert runner.value(printing) == 5
    assert len(runner.output()) == 5_000_005


def test_closed_and_replaced_streams_are_whole_again_for_the_next(runner: Runner) -> None:
    def close_descriptors() -> None:
        print("before")
        os.close(1)
        os.close(2)

    def close_objects() -> None:
        sys.stdout.close()
        sys.stderr.close()

    def replace() -> None:
        import io

        sys.stdout = io.StringIO()

    for spoil in (close_descriptors, close_objects, replace):
        assert runner.run(spoil)["frame"] == "result"
        runner.value(lambda: print("still here"))
        assert runner.output() == b"still here\n"


def test_what_a_thread_prints_late_belongs_to_nobody(runner: Runner) -> None:
    def leave_a_thread(fifo: str) -> None:
        def late() -> None:
            with open(fifo) as gate:
                gate.read()
            print("late" * 15000)
            open(fifo, "w").close()

        threading.Thread(target=late, daemon=True).start()

    os.mkfifo(fifo := str(runner.folder / "gate"))
    for n in range(100):  # Which of the runner's two processes comes upon it is a matter of time.
        frame = runner.run(leave_a_thread, fifo)
        assert not frame["retire"]
        open(fifo, "w").close()
        open(fifo).close()  # Opens when the thread has printed.
        time.sleep(n % 50 * 2e-5)
        runner.value(print, "next")
        assert runner.output() == b"next\n"


def test_a_thread_that_was_to_be_waited_for_retires_the_process(runner: Runner) -> None:
    def leave_a_thread() -> None:
        threading.Thread(target=threading.Event().wait).start()

    assert runner.run(leave_a_thread)["retire"]
    assert runner.gone() == 0


def test_input_is_empty(start_runner: Callable[..., Runner]) -> None:
    assert start_runner().value(lambda: (sys.stdin.read(), os.read(0, 10))) == ("", b"")


def alternating(runner: Runner) -> list[str]:
    """What was said, stream by stream as the agent is told of it."""
    told = groupby(runner.kinds("output"), lambda frame: frame["stream"])
    said = [(stream, "".join(frame["text"] for frame in frames)) for stream, frames in told]
    return [f"{stream}: {line}" for stream, text in said for line in text.splitlines()]


PAIRS = [line for n in range(200) for line in (f"stdout: {n}", f"stderr: {n}")]


@pytest.mark.forked
def test_both_streams_keep_their_order(runner: Runner) -> None:
    def speak(pairs: int) -> None:
        for n in range(pairs):
            print(n)
            print(n, file=sys.stderr)

    runner.value(speak, 200)
    assert alternating(runner) == PAIRS


SPEAKING = """\
import logging, subprocess, sys
assert (sys.stdout.name, sys.stdout.mode, sys.stdout.fileno()) == ("<stdout>", "w", 1)
assert sys.stdout.encoding == sys.__stderr__.encoding == "utf-8"
logging.basicConfig(format="%(message)s", level="INFO")
for n in range(200):
    print(n)
    logging.info(n)
"""


@pytest.mark.forked
def test_both_streams_of_a_script_keep_their_order(runner: Runner) -> None:
    runner.start_script({"main.py": SPEAKING})
    assert runner.end()["frame"] == "result"
    assert alternating(runner) == PAIRS


def test_streams_that_a_job_put_elsewhere_keep_nobody_waiting(runner: Runner) -> None:
    def speak(pairs: int) -> str:
        reads, writes = os.pipe()
        os.dup2(writes, 2)
        os.close(writes)
        for n in range(pairs):
            print(n)
            print(n, file=sys.stderr)
        return os.read(reads, 10_000).decode()

    begun = time.monotonic()
    assert len(runner.value(speak, 1000).splitlines()) == 1000
    assert len(runner.output().splitlines()) == 1000
    assert time.monotonic() - begun < 100, "seconds for each would be more"
