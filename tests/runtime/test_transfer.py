"""Transfers: patient with a controller that restarts, firm with one that refuses."""

from __future__ import annotations

import hashlib
import io
import socket

import pytest

from corral.runtime.failures import TransferFailed
from corral.runtime.files import transfer
from corral.runtime.files.transfer import NotThere, Transfer
from tests.runtime.harness import Controller


def way(controller: Controller, patience_s: float = 120.0) -> Transfer:
    return Transfer(controller.url, controller.token, "job-1", 1, patience_s=patience_s)


def test_bytes_go_there_and_back(controller: Controller) -> None:
    data = bytes(range(256)) * 5000
    sha256 = hashlib.sha256(data).hexdigest()
    there = way(controller)
    assert there.put_result(data) == (sha256, len(data))
    assert there.put_artifact("a b/ü%.txt", io.BytesIO(b"x"), 1)[1] == 1
    assert controller.artifacts == {"a b/ü%.txt": b"x"}
    controller.packages[sha256] = data
    assert there.package_bytes(sha256) == data
    there.close()


def test_the_next_attempt_goes_on_with_the_connection(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = way(controller)
    first.put_result(b"1")
    second = Transfer(controller.url, controller.token, "job-2", 1, before=first)
    second.put_result(b"2")
    assert controller.connections == 1
    assert controller.requests[1].startswith("PUT /attempts/job-2/1/")
    monkeypatch.setattr(transfer, "IDLE_S", 0.0)
    third = Transfer(controller.url, controller.token, "job-3", 1, before=second)
    third.put_result(b"3")
    assert controller.connections == 2, "what was idle for long may be closed over there"
    elsewhere = Transfer("http://127.0.0.2:1", controller.token, "job-4", 1, before=third)
    assert elsewhere._connection is None
    elsewhere.close()


def test_a_busy_controller_is_asked_again(controller: Controller) -> None:
    controller.refuse = [503, 500]
    there = way(controller)
    assert there.put_result(b"data")[1] == 4
    assert len(controller.requests) == 3
    there.close()


@pytest.mark.parametrize("status", [400, 401, 409, 413])
def test_a_refusal_is_final(controller: Controller, status: int) -> None:
    controller.refuse = [status]
    with pytest.raises(TransferFailed, match=str(status)):
        way(controller).put_result(b"data")
    assert len(controller.requests) == 1


def test_a_wrong_token_is_said_in_the_controller_s_words(controller: Controller) -> None:
    there = Transfer(controller.url, "wrong", "job-1", 1)
    with pytest.raises(TransferFailed, match="401 Not this token"):
        there.put_result(b"data")


def test_what_is_not_there(controller: Controller) -> None:
    with pytest.raises(NotThere):
        way(controller).checkpoint("0" * 64, io.BytesIO())


def test_other_bytes_than_asked_for_are_not_accepted(controller: Controller) -> None:
    controller.packages["0" * 64] = b"other"
    with pytest.raises(TransferFailed, match="sha256"):
        way(controller).package_bytes("0" * 64)


def test_a_file_that_shrinks_is_noticed(controller: Controller) -> None:
    with pytest.raises(TransferFailed, match="shorter"):
        way(controller).put_artifact("a", io.BytesIO(b"123"), 5)


def test_patience_ends(controller: Controller) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(TransferFailed, match="could not be reached"):
            Transfer(url, "t", "job", 1, patience_s=0.2).put_result(b"data")
