"""A real GPU inside the sandbox: the driver must find its devices and nothing else changes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import cloudpickle
import pytest

from tests.runtime.harness import Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.gpu


def allocate(size: int) -> int:
    """Allocate on the first GPU through the driver alone; how many devices there are."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory, count = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    for status in (
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)),
        cuda.cuMemFree_v2(memory),
    ):
        if status != 0:
            raise RuntimeError(f"CUDA answered {status}")
    return count.value


def test_cuda_works_in_the_sandbox(start_runner: Callable[..., Runner]) -> None:
    runner = start_runner(environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert runner.value(allocate, 1 << 30) == 1
    assert not runner.run(allocate, 1 << 20)["retire"]


def test_a_gpu_that_is_hidden_is_not_found(start_runner: Callable[..., Runner]) -> None:
    runner = start_runner(environ={"CUDA_VISIBLE_DEVICES": ""})
    assert runner.failure(allocate, 1)["message"] == "CUDA answered 100"
