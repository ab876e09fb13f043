"""The client of the end-to-end tests serves here too, and one that is as plain as curl."""

import pytest

from tests.api.rest import Rest
from tests.e2e.conftest import client
from tests.live import LiveController

__all__ = ["client"]


@pytest.fixture
def rest(controller: LiveController) -> Rest:
    return Rest(controller)
