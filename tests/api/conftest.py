"""The client of the end-to-end tests serves here too."""

from tests.e2e.conftest import client

__all__ = ["client"]
