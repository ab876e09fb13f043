"""One attempt, in processes of its own. Standard library only: it runs inside job environments.

agent ──lines──> runner.py ── supervisor: pumps output, watches ──frames──> agent
                                 │ fork
                                 └─ attempt_process: sandbox, then attempt_loop
                                       ├─ functions   in this process, many in a row
                                       └─ scripts     in a child of it, once

Where nothing forks (on Windows, or by choice): spawning_supervisor ──line──> spawned_process, and
from there on the same.
"""
