"""The agent process: takes its home, obeys signals, runs the agent.

    python -m corral.agent.main --home HOME [--embedded]

Exit codes: 0 after a drain or when an embedded agent lost its controller, 75 when another agent
has this home or took this worker's place, 77 when it was revoked, 78 when the home or its settings
cannot be used, 85 when it is idle and a newer Corral lies ready to take its place.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from corral import logs
from corral.agent import inventory, system
from corral.agent.agent import TAKEN, Agent
from corral.core.errors import CorralError
from corral.home import Home, KeptFolder
from corral.locks import lock_file
from corral.reopening import reopen
from corral.settings import Config, load

UNUSABLE = 78


async def serve(config: Config, *, embedded: bool) -> int:
    agent = Agent(config, embedded=embedded)

    def stop() -> None:
        grace_s = config.settings.shutdown_grace_s
        agent.leave(grace_s, reason="the worker was asked to stop", for_good=True)

    # Ctrl-C reaches the whole foreground group; an embedded agent is told by its controller.
    system.on_stop(stop, (lambda: None) if embedded else stop)
    return await agent.run()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="corral-agent", description="A Corral worker.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--embedded", action="store_true")
    options = parser.parse_args(arguments)
    try:
        reopen((KeptFolder(options.home / "worker", 2),))
        config = load(options.home.resolve())
        inventory.declared_gpus(config.settings.worker.gpus)  # refused here, before anything runs
        (config.home / "worker").mkdir(parents=True, exist_ok=True)
        lock = (config.home / "worker" / "lock").open("ab")
    except (CorralError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    with lock:
        if not lock_file(lock.fileno()):
            sys.stderr.write(f"Another agent already runs on {config.home}; this one ends.\n")
            return TAKEN
        logs.configure(
            config.settings.log_level,
            config.settings.log_format,
            file=Home(config.home).log_file,
        )
        if sys.platform != "win32" and not config.settings.inspectable:
            from corral.runtime.process import posix

            posix.close_to_others()  # jobs run as the same user
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        with asyncio.Runner(loop_factory=system.loop_factory()) as runner:
            return runner.run(serve(config, embedded=options.embedded))


if __name__ == "__main__":
    sys.exit(main())
