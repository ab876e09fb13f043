"""What a job raised is caught here as if it had been raised here."""

from __future__ import annotations

import binascii
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from corral.core.errors import JobCancelled, JobError, JobFailed, JobNotFound
from corral.core.job import Failure
from corral.runtime.failures import from_exception
from corral.sdk import results
from corral.sdk.client import Client
from corral.sdk.remote_errors import error_of
from corral.sdk.submit import own_modules
from tests.live import LiveController


class Picky(Exception):
    """Of the kind that cannot be made again from its message."""

    def __init__(self, status: int, *, url: str) -> None:
        super().__init__(f"{url} answered {status}")
        self.status_code, self.url, self.code = status, url, "its own"


class Unhelpful(Exception):
    def __new__(cls, *args: object) -> Unhelpful:
        raise TypeError("not here")


def failed(error: Exception, **changed: Any) -> JobError:
    """What a caller gets for what a job raised."""
    told = from_exception(error)
    told["pickled"] = binascii.a2b_base64(told["pickled"]) if "pickled" in told else None
    return error_of("01job", "failed", Failure(**{**told, **changed}))


def test_it_is_a_failed_job_and_what_was_raised() -> None:
    error = failed(ValueError("bad input"))
    assert isinstance(error, JobFailed)
    assert isinstance(error, ValueError)
    assert str(error) == error.message == "Job 01job failed: ValueError: bad input"
    assert error.job_id == "01job"
    assert error.code == "job_failed"
    assert repr(error.__cause__) == "ValueError('bad input')"
    assert type(error).__name__ == "JobFailed[ValueError]"


def test_its_attributes_are_those_of_what_was_raised() -> None:
    error: Any = failed(FileNotFoundError(2, "No such file", "data.csv"))
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "data.csv")
    error = failed(Picky(503, url="there"))
    assert isinstance(error, Picky)
    assert (error.status_code, error.url) == (503, "there")
    cause: Any = error.__cause__
    assert (error.code, cause.code, str(cause)) == ("job_failed", "its own", "there answered 503")
    error = failed(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert isinstance(error, UnicodeDecodeError)
    assert (error.object, error.reason) == (b"\xff", "invalid start byte")
    assert str(failed(KeyError("name"))) == "Job 01job failed: KeyError: 'name'"


def test_its_args_are_those_of_what_was_raised() -> None:
    error = failed(KeyError("nokey", 3))
    assert error.args == ("nokey", 3)
    assert str(error) == error.message == "Job 01job failed: KeyError: ('nokey', 3)"
    assert failed(FileNotFoundError(2, "No such file", "x")).args == (2, "No such file")
    again = pickle.loads(pickle.dumps(error))
    assert (again.args, str(again)) == (error.args, str(error))
    group: Any = failed(ExceptionGroup("two", [ValueError(1)]))
    assert (group.args[0], str(group).partition(":")[0]) == ("two", "Job 01job failed")
    assert str(failed(ValueError("x"), pickled=None)) == "Job 01job failed: ValueError: x"


def test_groups_are_taken_apart_as_ever() -> None:
    caught = []
    try:
        raise failed(ExceptionGroup("two", [ValueError(1), KeyError(2)]))
    except* ValueError as group:
        caught.append(group.exceptions[0].args)
    except* KeyError as group:
        caught.append(group.exceptions[0].args)
    assert caught == [(1,), (2,)]


@pytest.mark.parametrize("error", [StopIteration(3), StopAsyncIteration(), Unhelpful.__new__])
def test_what_would_mislead_or_cannot_be_both_is_a_failed_job(error: Any) -> None:
    if callable(error):
        error = Exception.__new__(Unhelpful)
    found = failed(error)
    assert isinstance(found, JobFailed)
    assert not isinstance(found, StopIteration | StopAsyncIteration)


def test_errors_of_corral_itself_are_told_apart() -> None:
    error = failed(JobNotFound("no such job"))
    assert isinstance(error, JobNotFound)
    assert isinstance(error, JobFailed)
    assert error.code == "job_failed"
    for nested in (JobFailed("another one failed"), JobCancelled("another one was")):
        assert type(failed(nested)) is JobFailed
    assert (
        type(failed(ValueError("x"), pickled=None, type="corral.core.errors.NotFound")) is JobFailed
    )


def test_a_class_that_is_known_here_needs_no_bytes() -> None:
    assert isinstance(failed(ZeroDivisionError("no"), pickled=None), ZeroDivisionError)
    assert isinstance(failed(Picky(1, url="x"), pickled=None), Picky)
    for name in ("not_loaded_here.Error", "Picky", "os.path", "SystemExit", "builtins.len", ""):
        assert type(failed(ValueError("x"), pickled=None, type=name)) is JobFailed
    assert "not_loaded_here" not in sys.modules


class Guarded(Exception):
    """Of the kind that keeps its attributes to itself."""

    args = property(lambda self: ("own",))
    details = property(lambda self: "own")
    failure = property(lambda self: "own")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Jealous(Exception):
    def __init_subclass__(cls) -> None:
        if cls.__name__.startswith("JobFailed"):
            raise RuntimeError("no more of us")


class Twice(ValueError, OSError):
    pass


class OwnPickle(Exception):
    def __reduce_ex__(self, protocol: object) -> Any:
        return OwnPickle, ()


@pytest.mark.parametrize("cls", [Guarded, Jealous, Twice, OwnPickle])
def test_whatever_a_class_does_the_job_has_failed(cls: type[Exception]) -> None:
    error = failed(cls("text"))
    assert isinstance(error, JobFailed)
    assert error.failure.type.endswith(cls.__name__)
    assert error.details["code"] == "exception"
    assert error.job_id == "01job"
    assert "01job failed" in str(error)
    assert isinstance(error, cls) or cls is Jealous
    assert isinstance(pickle.loads(pickle.dumps(error)), JobFailed)


def test_notes_are_not_shared_with_the_cause() -> None:
    raised = ValueError("x")
    raised.add_note("of the job")
    error: Any = failed(raised, traceback="Traceback")
    assert error.__notes__ == ["of the job", "In the job:\nTraceback"]
    assert error.__cause__.__notes__ == ["of the job"]
    raised.__notes__ = "none"  # type: ignore[assignment]
    assert isinstance(failed(raised), JobFailed)


def test_a_time_out_in_the_job_is_not_that_of_the_wait(controller: LiveController) -> None:
    def late() -> None:
        raise TimeoutError("the server did not answer")

    with Client(controller.address, controller.token) as client:
        for timeout in (None, 60):
            with pytest.raises(JobFailed, match="did not answer") as caught:
                client.submit(late).result(timeout)
            assert isinstance(caught.value, TimeoutError)


def test_only_failed_jobs_are_what_was_raised() -> None:
    told = Failure(code="cancelled", message="was cancelled", type="ValueError")
    error = error_of("01job", "cancelled", told)
    assert type(error) is JobCancelled


def test_it_goes_from_one_process_to_another() -> None:
    error = failed(Picky(503, url="there"))
    again: Any = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Picky)
    assert isinstance(again, JobFailed)
    assert (str(again), again.job_id, again.status_code) == (str(error), "01job", 503)


def gone(monkeypatch: pytest.MonkeyPatch, leave: Callable[[types.ModuleType], None]) -> bytes:
    """A pickled object of a class that `leave` takes away."""
    module = types.ModuleType("at_the_worker_alone")
    cls = type("Table", (), {"__module__": module.__name__})
    module.Table = cls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    data = pickle.dumps(cls())
    leave(module)
    return data


def test_a_result_that_cannot_be_made_here_says_that_the_job_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gone(monkeypatch, lambda module: monkeypatch.delitem(sys.modules, module.__name__))
    with pytest.raises(JobError, match=r"succeeded.*'at_the_worker_alone', which is not installed"):
        results.value_of(data)
    with pytest.raises(
        JobError, match=r"Job 01job succeeded.*client.job\('01job'\).result"
    ) as caught:
        results.value_of(data, job_id="01job")
    assert caught.value.job_id == "01job"


def test_a_class_that_this_program_has_no_more_says_where_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One's own may have changed since it was loaded; a library's is of another version."""
    data = gone(monkeypatch, lambda module: delattr(module, "Table"))
    monkeypatch.setitem(own_modules._roots, "at_the_worker_alone", True)
    with pytest.raises(JobError, match=r"'Table' of your at_the_.*start the program again") as own:
        results.value_of(data)
    assert "<module" not in str(own.value)
    monkeypatch.setitem(own_modules._roots, "at_the_worker_alone", False)
    with pytest.raises(JobError, match=r"'Table' of at_the_worker_alone\. A library.*version"):
        results.value_of(data)


def refuse(name: str) -> None:
    raise ValueError(f"{name} is not a known BitGenerator module.")


class OfAnotherVersion:
    def __reduce__(self) -> Any:
        return refuse, ("PCG64",)


def test_a_result_that_refuses_to_be_made_names_job_and_versions() -> None:
    with pytest.raises(JobError, match=r"ValueError: PCG64.*another version") as caught:
        results.value_of(pickle.dumps(OfAnotherVersion()), job_id="01job")
    assert caught.value.job_id == "01job"
    assert isinstance(caught.value.__cause__, ValueError)
