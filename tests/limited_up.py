"""`corral up` with limits that are no settings: `tests/limited_up.py '{"header_s": 0.5}' …`."""

from __future__ import annotations

import json
import sys

from corral import settings, variables
from corral.core.limits import InputLimits
from corral.server import serve


def main() -> int:
    limits, words = json.loads(sys.argv[1]), sys.argv[2:]
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    flags = dict(zip(names, words[1::2], strict=True))
    numbers = {name: int(value) for name, value in flags.items() if name.endswith("port")}
    variables.quiet_grpc()
    return serve(settings.load(flags={**flags, **numbers}), InputLimits(**limits))


if __name__ == "__main__":
    sys.exit(main())
