"""Pure data and rules: no clock, no I/O, no randomness. Everything else stands on this."""
