"""The caller's own modules and packages, which a function names: unpacked beside the run folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.runtime.files.packages import unpack
from corral.runtime.files.run_folder import CODE

if TYPE_CHECKING:
    from corral.runtime.files.transfer import Transfer
    from corral.runtime.order import OrderBytes


def lay_out(code: OrderBytes, kept: str, work_dir: str, transfer: Callable[[], Transfer]) -> str:
    """The folder that they are in now; `kept` is where this worker has the zip, if it has it."""
    folder = os.path.join(work_dir, CODE, code["sha256"][:16])
    if kept:
        with open(kept, "rb") as package:
            unpack(package, folder)
    else:
        with tempfile.TemporaryFile() as package:
            transfer().package(code["sha256"], package)
            unpack(package, folder)
    return folder
