"""Generated code: `write` makes corral_pb2.py(i) from corral.proto, `check` says if they match.

Another release of the protobuf compiler writes the same messages with another version in the
header. So equal versions must agree byte for byte, and different ones in the descriptor.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
PROTO = "corral/contract/corral.proto"
MADE = ("corral/contract/corral_pb2.py", "corral/contract/corral_pb2.pyi")
VERSION = re.compile(r"Protobuf Python Version: (\S+)")
DESCRIPTOR = re.compile(r"AddSerializedFile\((b'.*')\)")


def generate(into: Path) -> None:
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={into}", f"--pyi_out={into}", PROTO]
    subprocess.run([sys.executable, *command], cwd=SRC, check=True)


def found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def check() -> int:
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = [(Path(folder) / name).read_text(encoding="utf-8") for name in MADE]
    kept = [(SRC / name).read_text(encoding="utf-8") for name in MADE]
    if found(VERSION, fresh[0]) == found(VERSION, kept[0]):
        same = fresh == kept
    else:
        same = found(DESCRIPTOR, fresh[0]) == found(DESCRIPTOR, kept[0]) != ""
    if not same:
        print(f"{MADE[0]} is not what {PROTO} says: run `make proto` and commit the result.")
        return 1
    print(f"Generated code matches {PROTO}.")
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["write"]:
            generate(SRC)
            return 0
        case ["check"]:
            return check()
    print("usage: python tools/generated.py write|check")
    return 2


if __name__ == "__main__":
    sys.exit(main())
