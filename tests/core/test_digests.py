"""A document's digest is the same, whether other threads may run meanwhile or not."""

from __future__ import annotations

import hashlib

import pytest

from corral.core.job import ALONE, document_digest


@pytest.mark.parametrize("size", [0, 1, ALONE - 1, ALONE, ALONE + 1, 3 * ALONE, 3 * ALONE + 1])
def test_a_digest_is_the_same_either_way(size: int) -> None:
    document = bytes(range(256)) * (size // 256 + 1)
    whole = hashlib.sha256(document[:size]).hexdigest()
    assert document_digest(document[:size]) == document_digest(document[:size], alone=True) == whole
