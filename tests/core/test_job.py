"""What a job may ask for, and ids that sort by time."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import BY_CODE, CorralError, InvalidJob, JobNotFound, from_view
from corral.core.ids import Ids
from corral.core.job import gpu_needs


@pytest.mark.parametrize("tenths", range(1, 11))
def test_a_float32_share_is_its_tenth(tenths: int) -> None:
    (share,) = struct.unpack("f", struct.pack("f", tenths / 10))
    assert gpu_needs(gpus=None, gpu_memory=share, vram_gb=None) == (0, tenths)


@pytest.mark.parametrize("share", [0.05, 0.55, 1.1, 2.0, -0.1])
def test_other_shares_are_refused(share: float) -> None:
    with pytest.raises(InvalidJob, match=r"0\.1 to 1\.0"):
        gpu_needs(gpus=None, gpu_memory=share, vram_gb=None)


def test_gpus_and_a_share_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="not both"):
        gpu_needs(gpus=1, gpu_memory=0.5, vram_gb=None)


def test_vram_alone_means_one_gpu() -> None:
    assert gpu_needs(gpus=None, gpu_memory=None, vram_gb=12) == (1, 0)


@given(st.lists(st.floats(min_value=1e9, max_value=4e9), min_size=2, max_size=50), st.integers())
def test_ids_never_repeat_and_sort_by_time(times: list[float], seed: int) -> None:
    ids = Ids(seed)
    made = [ids.new(now, seed=seed) for now in sorted(times) for _ in range(3)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


def test_ids_go_on_when_the_clock_steps_back() -> None:
    ids = Ids(0)
    first, second = ids.new(2e9, seed=5), ids.new(1e9, seed=1)
    assert second > first


def test_an_error_comes_back_as_the_same_class() -> None:
    error = JobNotFound("gone", job_id="j", details={"a": 1})
    back = from_view(error.view())
    assert type(back) is JobNotFound
    assert (back.message, back.job_id, back.details) == ("gone", "j", {"a": 1})
    assert BY_CODE["internal"] is CorralError
