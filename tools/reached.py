"""Which modules of Corral no test of a run reaches: `python tools/reached.py [ARGS of pytest]`.

Without arguments it runs what `make test` does. A module is reached when a function of it ran, in
whatever process; one without functions when it was imported. While it runs, `corral/__init__.py`
of this checkout has a few more lines.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "corral"
FIRST = PACKAGE / "__init__.py"
ELSEWHERE = 'assert sys.platform == "win32"'
"""What such a module says first, no test here can run."""
QUICK = ["-n", "2", "-q", "-m", "not gpu and not windows and not long"]

NOTING = """

def _note_what_runs(folder: str) -> None:
    import os
    import sys
    import threading

    seen = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event != "call" or code.co_filename in seen or "/corral/" not in code.co_filename:
            return
        if code.co_name == "<module>":
            kind = "imported"
        elif code.co_flags & 1:  # a function, and no body of a class
            seen.add(code.co_filename)
            kind = "ran"
        else:
            return
        name = code.co_filename.rpartition("/corral/")[2].replace("/", "+")
        try:
            os.close(os.open(f"{folder}/{kind}+{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        except OSError:
            seen.discard(code.co_filename)

    sys.setprofile(note)
    threading.setprofile(note)
"""


def missed(folder: Path) -> list[str]:
    found = {path.name for path in folder.iterdir()}
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE)).replace("/", "+")
        text = path.read_text(encoding="utf-8")
        if ELSEWHERE in text:
            continue
        tree = ast.walk(ast.parse(text))
        has_code = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in tree)
        if (f"ran+{name}" if has_code else f"imported+{name}") not in found:
            names.append(str(path.relative_to(ROOT)))
    return names


def main() -> int:
    before = FIRST.read_text(encoding="utf-8")
    # Where confined processes may write, too.
    with tempfile.TemporaryDirectory(prefix="corral-reached-", dir="/dev/shm") as folder:
        FIRST.write_text(f"{before}{NOTING}\n\n_note_what_runs({folder!r})\n", encoding="utf-8")
        try:
            command = [sys.executable, "-m", "pytest", *(sys.argv[1:] or QUICK)]
            tested = subprocess.run(command, cwd=ROOT, check=False).returncode
        finally:
            FIRST.write_text(before, encoding="utf-8")
        names = missed(Path(folder))
    print(f"{len(names)} modules were not reached:" if names else "Every module was reached.")
    print("".join(f"  {name}\n" for name in names), end="")
    return 1 if names else tested


if __name__ == "__main__":
    sys.exit(main())
