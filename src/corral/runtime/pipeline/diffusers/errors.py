"""What an error of torch or diffusers means for the job."""

from __future__ import annotations

import errno

from corral.runtime.failures import OUT_OF_MEMORY_TYPES, is_gpu_error, type_name
from corral.runtime.pipeline.backend import NO_MEMORY, StageFailed

MEMORY_WORDS = (*NO_MEMORY, "cannot allocate memory", "status_alloc_failed")
"""Also what the libraries of the GPU say whose own room was taken (cuBLAS, cuDNN)."""


def meaning(error: BaseException) -> StageFailed | None:
    """None for what nobody foresaw, and for what only the place where it happened can tell."""
    said = str(error).strip().partition("\n")[0]
    if _is_short(error):
        return StageFailed("out_of_memory", f"Out of memory: {said or type(error).__name__}")
    if is_gpu_error(str(error)):
        return StageFailed(
            "backend_down",
            f"The GPU failed: {said.rstrip('.')}. The next job gets a fresh process.",
        )
    return None


def _is_short(error: BaseException) -> bool:
    kinds = {type_name(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)}
    if isinstance(error, MemoryError) or kinds & OUT_OF_MEMORY_TYPES:
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return any(words in str(error).lower() for words in MEMORY_WORDS)
