"""Names that no file can have on Windows."""

from __future__ import annotations

DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
)
"""What Windows takes for a device, whatever ending it has."""
