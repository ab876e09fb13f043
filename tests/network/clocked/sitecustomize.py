"""Loaded by Python at its start on machines whose clock can be moved: libfaketime 0.9.10 turns
`clock_nanosleep` with an absolute time, which `time.sleep` is made of, into EINVAL."""

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], max(0.0, float(seconds)))


time.sleep = sleep
