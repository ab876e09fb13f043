"""A runner's first line: its limits, walls, interpreter, variables and secrets.

By marshal, in a version that every Python 3 reads: to load JSON takes as long as to start an
interpreter. It only ever comes from whoever started the process.
"""

from __future__ import annotations

import marshal
from binascii import a2b_base64, b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ_BY_ALL = 2


def encode(configuration: dict[str, Any]) -> bytes:
    return b2a_base64(marshal.dumps(configuration, READ_BY_ALL))


def decode(line: bytes) -> dict[str, Any]:
    told: dict[str, Any] = marshal.loads(a2b_base64(line))  # noqa: S302
    return told
