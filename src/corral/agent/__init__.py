"""A worker machine."""
