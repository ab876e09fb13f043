"""The string that invites: what goes in comes out, and anything else is refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import InvalidRequest
from corral.joining.invitation import Invitation, parse

SHA256 = "0123456789abcdef" * 4
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.local)?", fullmatch=True),
)
PORTS = st.integers(1, 65535)


TOKENS = st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable())


@given(HOSTS, PORTS, PORTS, TOKENS, st.booleans())
def test_what_goes_in_comes_out(host: str, port: int, grpc: int, token: str, client: bool) -> None:
    invitation = Invitation(host, port, grpc, token, SHA256, client)
    assert parse(invitation.text()) == invitation
    assert parse(f" '{invitation.text()}' \n") == invitation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "corral worker join",
        f"https://t@h:1?grpc=2&sha256={SHA256}",
        f"corral://h:1?grpc=2&sha256={SHA256}",
        f"corral://t@h?grpc=2&sha256={SHA256}",
        f"corral://t@h:99999?grpc=2&sha256={SHA256}",
        f"corral://t@h:1?sha256={SHA256}",
        f"corral://t@h:1?grpc=x&sha256={SHA256}",
        "corral://t@h:1?grpc=2&sha256=12",
        "corral://t@[::1:1?grpc=2",
    ],
)
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidRequest, match="corral invite"):
        parse(text)
