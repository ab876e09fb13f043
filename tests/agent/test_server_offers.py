"""What an agent tells of its image servers."""

from __future__ import annotations

from corral.agent.image_servers import survey
from corral.core.images.backends import WebUIEntry
from tests.fakes.webui import FakeWebUI


def test_a_model_in_a_folder_goes_by_both_names() -> None:
    with FakeWebUI() as fake:
        offer = survey(WebUIEntry(url=fake.url))
    assert [model.name for model in offer.models] == [
        *("alpha", "beta", "gamma", "deep/gamma", "refine"),
    ]
