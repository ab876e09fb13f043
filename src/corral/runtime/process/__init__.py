"""What the runtime asks of the system, POSIX or Windows, and of its processes.

`system` is the one of the two that is meant: chosen here, and nowhere else.
"""

import sys

if sys.platform == "win32":
    from corral.runtime.process import windows as system
else:
    from corral.runtime.process import posix as system

__all__ = ["system"]
