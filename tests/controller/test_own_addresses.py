"""Which of a machine's addresses a controller names and announces, by where it listens."""

from __future__ import annotations

import pytest

from corral.joining.addresses import Interface, interfaces
from corral.joining.discovery import Announced
from corral.server.own_addresses import OwnAddresses
from corral.settings import Settings

MACHINE = {
    "lo": Interface(("127.0.0.1", "::1"), True),
    "eth0": Interface(("192.0.2.7", "192.0.2.8", "2001:db8::7"), True),
    "wlan0": Interface(("198.51.100.7",), False),
    "tun0": Interface(("2001:db8:1::7",), True),
}
ETH0 = ("192.0.2.7", "192.0.2.8")


@pytest.mark.parametrize(
    ("host", "named", "announced"),
    [
        ("0.0.0.0", {*ETH0, "198.51.100.7", "127.0.0.1"}, {"eth0": Announced(ETH0, ETH0)}),
        (
            "::",
            {one for interface in MACHINE.values() for one in interface.addresses},
            {"eth0": Announced(ETH0, ETH0)},
        ),
        ("192.0.2.8", {"192.0.2.8"}, {"eth0": Announced(("192.0.2.8",), ETH0)}),
        ("2001:db8::7", {"2001:db8::7"}, {"eth0": Announced(("2001:db8::7",), ETH0)}),
        ("127.0.0.1", {"127.0.0.1"}, {}),
    ],
)
def test_what_is_ours(host: str, named: set[str], announced: dict[str, Announced]) -> None:
    own = OwnAddresses(Settings(host=host, advertise="barn.example"))
    places = own.places(MACHINE)
    assert {place for place in places if place[0].isdigit() or ":" in place} == named
    assert {"localhost", "barn.example"} <= places
    assert own.announced(MACHINE) == announced
    assert own.invited == "barn.example"


def test_this_machine_has_its_loopback() -> None:
    assert any("127.0.0.1" in interface.addresses for interface in interfaces().values())
    assert not any(
        address.startswith("fe80:") for one in interfaces().values() for address in one.addresses
    )
