"""The controller's certificate: the same one for good, and never half of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.core.errors import HomeUnusable
from corral.joining import trust


def test_made_once(tmp_path: Path) -> None:
    certificate, key = trust.kept_certificate(tmp_path / "tls")
    before = certificate.read_bytes(), key.read_bytes()
    assert trust.kept_certificate(tmp_path / "tls") == (certificate, key)
    assert (certificate.read_bytes(), key.read_bytes()) == before


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
def test_a_damaged_one_is_said_and_not_replaced(tmp_path: Path, name: str) -> None:
    """Workers know the controller by it: a new one would lock all of them out without a word."""
    trust.kept_certificate(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(HomeUnusable, match="invite every worker"):
        trust.kept_certificate(tmp_path)
    assert (tmp_path / name).read_bytes() == b""
