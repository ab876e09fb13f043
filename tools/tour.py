"""The README's tour, followed to the letter: `write` puts the real output under each command,
`check` says where what it prints is no longer what the README shows.

Ids, numbers, addresses and paths differ from run to run and machine to machine; words do not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
STEP = re.compile(
    r"```(?:console\n(?P<commands>(?:\$ [^\n]*\n)+)|python\n(?P<program>[^`]*))```\n\n"
    r"```text\n(?P<output>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
MARK = "-- end of a command of the tour --"
SHOWN_HOME = "/home/ada/.local/share/corral"


def environ(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    own = {"CORRAL_HOME": str(home), "CORRAL_WORKER_NAME": "barn", "COLUMNS": "150"}
    return {**kept, "PATH": path, **own, "CORRAL_PORT": "0", "CORRAL_GRPC_PORT": "0"}


def typed(step: re.Match[str]) -> str:
    if step["program"]:
        return f"python - <<'PROGRAM'\n{step['program']}PROGRAM\n"
    return "".join(line.removeprefix("$ ") for line in step["commands"].splitlines(keepends=True))


def follow(steps: list[re.Match[str]]) -> list[str]:
    """What each step prints when all are typed into one shell, in order."""
    with tempfile.TemporaryDirectory() as folder:
        home, here = Path(folder, "home"), Path(folder, "here")
        shutil.copytree(ROOT / "examples", here / "examples")
        script = "".join(f"{typed(step)}echo '{MARK}'\n" for step in steps)
        try:
            shell = subprocess.run(
                ["bash", "-c", script],
                env=environ(home),
                cwd=here,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=90,
            )
        finally:
            subprocess.run(["corral", "down"], env=environ(home), capture_output=True, check=False)
        printed = shell.stdout.replace(str(home), SHOWN_HOME)
        return [part.lstrip("\n") for part in printed.split(f"{MARK}\n")[: len(steps)]]


def words(text: str) -> list[str]:
    """What must be the same in every run."""
    text = re.sub(r"\b1[0-9a-z]{14}\b", "ID", text)
    text = re.sub(r"\d+([.,:]\d+)*", "N", text)
    text = re.sub(r"\bN (ms|s|min|h)\b", "N s", text)
    text = re.sub(r"(?m)^N of N done.*; .*$", "", text)  # how far it was, while it ran
    text = re.sub(r"runs/r?N", "runs/N", text)
    text = re.sub(r"duration: (cgroup|landlock|process_tree)", "duration: ONE", text)
    return text.split()


def main() -> int:
    text = README.read_text(encoding="utf-8")
    steps = list(STEP.finditer(text))
    printed = follow(steps)
    if sys.argv[1:] == ["write"]:
        for step, output in reversed(list(zip(steps, printed, strict=True))):
            tidy = "\n".join(line.rstrip() for line in output.rstrip().splitlines())
            tidy = re.sub(r"127\.0\.0\.1:\d+(?=\ngrpc)", "127.0.0.1:8700", tidy)
            tidy = re.sub(r"(?<=grpc  127\.0\.0\.1:)\d+", "50051", tidy)
            start, end = step.span("output")
            text = f"{text[:start]}{tidy}\n{text[end:]}"
        README.write_text(text, encoding="utf-8")
        return 0
    wrong = 0
    for step, output in zip(steps, printed, strict=True):
        if words(step["output"]) != words(output):
            wrong += 1
            print(f"The README shows for\n{typed(step)}{step['output']}but it prints\n{output}")
    print(f"{len(steps) - wrong} of {len(steps)} steps print what the README shows.")
    return 1 if wrong or not steps else 0


if __name__ == "__main__":
    sys.exit(main())
