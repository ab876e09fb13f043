"""The entry point of both processes of a runner: `python -I …/corral/runtime/runner.py ORDERS`.

The agent starts the supervisor, with its own Python. ORDERS is the descriptor they come by; or
`spawn`, where nothing is forked. The supervisor starts the job process, with the environment's
Python, by the word `confined` or `spawned`. Kept tiny because Python compiles a main script anew
each time; the rest comes compiled.
"""

import sys
from os.path import abspath, dirname

if __name__ == "__main__":
    # -I ignores PYTHONPATH, so the kit (three levels up) is put on the path here. It comes first:
    # a job's own cloudpickle must not meet ours halfway.
    sys.path.insert(0, dirname(dirname(dirname(abspath(__file__)))))
    if sys.argv[1] == "spawned":
        from corral.runtime.spawned_process import main
    elif sys.argv[1] == "spawn" or sys.platform == "win32":
        from corral.runtime.spawning_supervisor import main
    elif sys.argv[1] == "confined":
        from corral.runtime.attempt_process import main
    else:
        from corral.runtime.sandbox.start import main

    sys.exit(main())
