"""Machines that ask by themselves: few, for a while, and never by guessing."""

from __future__ import annotations

import pytest

from corral.controller.auth.join_requests import (
    ASKED_WITHIN_S,
    KEPT_S,
    MOST,
    MOST_ASKED,
    JoinRequest,
    JoinRequests,
)
from corral.core.errors import Conflict, InvalidRequest, Unauthorized
from corral.joining import pairing


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asks(requests: JoinRequests, number: str, address: str = "10.0.0.1") -> JoinRequest:
    return requests.ask("barn", address, pairing.commitment(number))


def test_both_sides_come_to_the_same_code_and_nobody_else_does() -> None:
    requests, number = JoinRequests(), pairing.number()
    asked = asks(requests, number)
    requests.reveal(asked.id, number, "our certificate")
    (shown,) = requests.pending()
    assert shown.code == pairing.code("our certificate", "barn", number, asked.number)
    assert len(shown.code) == 6
    codes = {
        pairing.code(certificate, name, worker, controller)
        for certificate in ("our certificate", "another")
        for name in ("barn", "bar")
        for worker in (number, pairing.number())
        for controller in (asked.number, pairing.number())
    }
    assert len(codes) > 10  # of 16: a change of any part shows


def test_a_number_may_not_be_chosen_late() -> None:
    """Who stands in between and has heard the controller's number would choose one that fits."""
    requests = JoinRequests()
    asked = asks(requests, pairing.number())
    with pytest.raises(Unauthorized):
        requests.reveal(asked.id, pairing.number(), "our certificate")
    assert not requests.pending()
    with pytest.raises(Unauthorized):
        requests.reveal(asked.id, pairing.number(), "our certificate")


async def test_only_the_machine_that_asked_gets_the_credential() -> None:
    requests, number = JoinRequests(), pairing.number()
    asked = asks(requests, number)
    requests.reveal(asked.id, number, "c")
    assert await requests.answer(asked.id, number, 0.0) is None
    with pytest.raises(Unauthorized):
        await requests.answer(asked.id, pairing.number(), 0.0)
    requests.admit(requests.find(asked.code), "w-1", "barn", "a credential")
    card = await requests.answer(asked.id, number, 0.0)
    assert card == {"worker_id": "w-1", "name": "barn", "credential": "a credential"}
    with pytest.raises(Unauthorized):  # told once
        await requests.answer(asked.id, number, 0.0)


def test_they_are_few_and_not_for_long() -> None:
    clock = Clock()
    requests = JoinRequests(clock)
    for place in range(MOST):
        asks(requests, pairing.number(), f"10.0.0.{place}")
    with pytest.raises(Conflict, match="wait to be confirmed"):
        asks(requests, pairing.number(), "10.0.1.1")
    asks(requests, pairing.number(), "10.0.0.1")  # instead of its former
    clock.now = KEPT_S + 1
    number = pairing.number()
    asked = asks(requests, number, "10.0.1.1")
    requests.reveal(asked.id, number, "c")
    assert requests.pending() == [asked]
    clock.now += KEPT_S + 1
    assert requests.pending() == []


@pytest.mark.parametrize("commitment", ["", "x" * 1000, "\n" * 64])
def test_nonsense_is_refused(commitment: str) -> None:
    with pytest.raises(InvalidRequest):
        JoinRequests().ask("barn", "10.0.0.1", commitment)
    with pytest.raises(InvalidRequest):
        JoinRequests().ask("", "10.0.0.1", pairing.commitment("x"))
    with pytest.raises(InvalidRequest, match="No machine"):
        JoinRequests().find("123456")


def test_nobody_asks_until_the_code_fits() -> None:
    """A request that is not revealed leaves no trace but this: it was asked."""
    clock = Clock()
    requests = JoinRequests(clock)
    for _ in range(MOST_ASKED):
        asks(requests, pairing.number())
    with pytest.raises(Conflict, match="Too many machines"):
        asks(requests, pairing.number())
    clock.now = ASKED_WITHIN_S + 1
    asks(requests, pairing.number())
