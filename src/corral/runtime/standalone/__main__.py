"""The entry point: `python -m corral.runtime.standalone TICKET`, or by its path with `-I`.

TICKET is a file of JSON; without it, the variable CORRAL_TICKET holds the same. Kept tiny because
Python compiles a main script anew each time.
"""

import sys
from os.path import abspath, dirname

if __name__ == "__main__":
    # -I ignores PYTHONPATH, so the folder of this package is put on the path here.
    kit = dirname(dirname(dirname(dirname(abspath(__file__)))))
    if kit not in sys.path:
        sys.path.insert(0, kit)
    from corral.runtime.standalone.attempt import main

    sys.exit(main())
