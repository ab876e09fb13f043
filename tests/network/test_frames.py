"""Messages that come twice, late and in another order: TCP never does that, whoever stands in
between might."""

from __future__ import annotations

import pytest

from corral.core.events import AttemptStarted
from tests.crash.books import stories
from tests.eventually import PATIENCE_S
from tests.network import laws
from tests.network.machines import Cluster
from tests.network.meddler import meddling

pytestmark = pytest.mark.long

JOBS = 60


def runs_once(yard: str, number: int) -> int:
    import os
    from pathlib import Path

    with Path(yard, "runs").open("a") as file:
        file.write(f"{os.environ['CORRAL_JOB_ID']}.{os.environ['CORRAL_ATTEMPT']}\n")
    print("number", number)
    return number * 2


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("repeated", {"repeat": 0.5, "delay_s": 0.3}),
        ("swapped", {"swap": 0.5}),
        ("delayed", {"delay": 0.5, "delay_s": 0.1}),
    ],
)
def test_mischief_with_messages(cluster: Cluster, what: str, how: dict[str, float]) -> None:
    meddler, runs = cluster.meddler, cluster.yard / "runs"
    assert meddler is not None
    runs.unlink(missing_ok=True)
    done = meddler.done[what]
    with cluster.client() as client, meddling(meddler, **how):
        options = {"worker": "w3", "retries": 0}
        handles = [
            client.submit(runs_once, (str(cluster.yard), n), fresh=n % 20 == 0, **options)  # type: ignore[arg-type]
            for n in range(JOBS)
        ]
        values = [handle.result(timeout=PATIENCE_S) for handle in handles]
    assert values == [n * 2 for n in range(JOBS)]
    assert meddler.done[what] > done + 5, "hardly a message was touched"
    ids = [handle.id for handle in handles]
    laws.check(cluster, ids)
    lines = runs.read_text().splitlines()
    assert len(lines) == len(set(lines)), "an attempt ran twice"
    written = stories(cluster.controller.home)
    for job in ids:
        starts = [fact for _, fact in written[job] if isinstance(fact, AttemptStarted)]
        assert len(starts) <= 1
