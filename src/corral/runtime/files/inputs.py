"""Input files of an attempt: put into its work directory before its code runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from corral.runtime.failures import AttemptFailed


def place(inputs: Mapping[str, str], folder: str, *, confined: bool) -> None:
    """Each file under its name in the folder. Where the kernel keeps this process from writing to
    what lies elsewhere, a link is enough; where nothing does, the job gets a copy of its own: the
    file itself serves other jobs too."""
    for name, path in inputs.items():
        target = os.path.join(folder, *name.split("/"))
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if confined:
                os.symlink(path, target)
            else:
                with open(path, "rb") as source, open(target, "xb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                if sys.platform != "win32":  # which removes nothing that is read-only
                    os.chmod(target, 0o444)
        except (FileExistsError, NotADirectoryError) as error:
            raise AttemptFailed(
                "bad_package",
                f"The input {name!r} and a file of the package have the same name. Rename one.",
            ) from error
