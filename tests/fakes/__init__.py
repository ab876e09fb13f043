"""Servers that behave as the real ones were seen to, over real sockets."""
