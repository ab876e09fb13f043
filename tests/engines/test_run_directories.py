"""The directories that standalone attempts run in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from corral.runtime.standalone.run_directories import new_run_directory
from tests.eventually import eventually

MAKES = "import sys; from corral.runtime.standalone.run_directories import new_run_directory as new"
TELLS = "print(new(sys.argv[1]), flush=True); sys.stdin.read()"


def test_what_a_killed_process_left_is_removed_and_what_another_holds_is_not(
    tmp_path: Path,
) -> None:
    def made() -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", f"{MAKES}; {TELLS}", str(tmp_path)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    with made()[0] as killed:
        killed.kill()
    (left,) = tmp_path.glob("attempt-*")
    (left / "work").mkdir()
    living, held = made()
    with living:
        eventually(lambda: not left.exists(), "it is removed")
        own = Path(new_run_directory(str(tmp_path)))
        assert set(tmp_path.glob("attempt-*")) == {held, own}
        assert living.stdin is not None
        living.stdin.close()
