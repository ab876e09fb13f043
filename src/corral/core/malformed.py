"""What reading somebody else's JSON can raise, beside a plain mistake in it: text that is no UTF-8,
and brackets in brackets in brackets."""

from __future__ import annotations

import msgspec

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
