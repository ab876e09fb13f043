"""The controller process: everything is constructed here, once, and ends here, in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from msgspec import structs

from corral import logs
from corral.controller.recovery import restore
from corral.core.errors import CorralError
from corral.core.limits import InputLimits
from corral.home import Home, write_private_json
from corral.reopening import reopen
from corral.server.controller import Controller
from corral.server.listening import listen, loop_factory
from corral.settings import Config, shown

log = logs.get_logger()


def serve(config: Config, limits: InputLimits = InputLimits()) -> int:  # noqa: B008 (it is frozen)
    """Runs the controller until it is asked to stop; returns the process's exit code. `limits` are
    what nobody needs to set: those of the settings go before them."""
    limits = structs.replace(limits, **structs.asdict(config.settings.limits))
    home = Home(config.home)
    reopen(home.kept_open)
    logs.configure(
        config.settings.log_level,
        config.settings.log_format,
        file=home.log_file,
        limit=config.settings.log_limit,
        rotates=True,
    )
    if sys.platform != "win32" and not config.settings.inspectable:
        # Jobs run as the same user; what they could look into is closed before it knows anything.
        from corral.runtime.process import posix

        posix.close_to_others()
    try:
        home.take()
        if sys.platform != "win32" and (mended := home.close_to_others()):
            log.warning("private_files_were_open", closed_again=mended)
        _write_settings(config, home)
        if restore.pending(home):
            log.info("backup_restored", former=str(restore.swap_in(home)))
            return _again(home)  # the settings may have come from the backup too
        http_socket = listen(config.settings.host, config.settings.port, "--port")
        with asyncio.Runner(loop_factory=loop_factory(limits.header_s)) as runner:
            code = runner.run(Controller(config, home, http_socket, limits).run())
        return _again(home) if restore.pending(home) and not code else code
    except CorralError as error:
        print(f"corral: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"corral: The home {config.home} cannot be used ({error}). See that its disk has space "
            "left and that it is yours, then start again.",
            file=sys.stderr,
        )
        return 1
    finally:
        home.release()


def _write_settings(config: Config, home: Home) -> None:
    """For `corral config`, which says what of the file waits for the next start."""
    told = {key: [shown(config.settings, key), source] for key, source in config.sources.items()}
    with contextlib.suppress(OSError):  # a full disk; those that matter are met and told later
        write_private_json(home.settings, told)


def _again(home: Home) -> int:
    """The program begins again as the same process: a terminal or service does not notice."""
    home.release()
    log.info("controller_begins_again", home=str(home.path))
    if sys.platform == "win32":
        return 0
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (itself)
