"""How everything that a job or a build ever starts is held together, to be ended at once."""

from __future__ import annotations

import sys

assert sys.platform != "win32"

from corral.runtime.process import posix
from corral.runtime.sandbox import rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Hold:
    def __init__(self, config: dict[str, Any]) -> None:
        self._group: str = config.get("cgroup", "")
        """The control group of this runner: this process is in it too."""
        self._scoped = bool(config.get("isolate")) and rules.scope_signals()
        posix.become_subreaper()

    def kill(self) -> bool:
        """Everything below this process; False where some of it was not caught."""
        return posix.kill_descendants(scoped=self._scoped)

    def end(self) -> None:
        """The whole group and this process with it, where there is one."""
        if self._group:
            from corral import permissions

            permissions.restore(f"{self._group}/cgroup.kill")
            with open(f"{self._group}/cgroup.kill", "w") as file:
                file.write("1")
