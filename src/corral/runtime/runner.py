"""The entry point of a runner: `python -I <kit>/corral/runtime/runner.py`, started by the agent.

Kept tiny because Python compiles a main script anew each time; the rest comes compiled.
"""

import sys

if __name__ == "__main__":
    # -I ignores PYTHONPATH, so the kit (three levels up) is put on the path here. It comes first:
    # a job's own cloudpickle must not meet ours halfway.
    sys.path.insert(0, __file__.rsplit("/corral/", 1)[0])
    from corral.runtime.supervisor import main

    sys.exit(main())
