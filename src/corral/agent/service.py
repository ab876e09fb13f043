"""A worker as a service of its machine: systemd on Linux, the Task Scheduler on Windows.

The service runs `corral worker run`, which starts the agent again when it dies; the service itself
starts that one again, and after a reboot.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from corral.agent.keeper import FOR_GOOD, Software
from corral.core.errors import Unavailable
from corral.home import write_durably

GROWING_PAUSES_SINCE = 254
"""The version of systemd that can wait longer before each restart."""
RUN = "-m corral.cli.main worker run --home"


def name_of(home: Path, default: Path) -> str:
    """One per home; only the usual one has the plain name."""
    if home == default:
        return "corral-worker"
    return f"corral-worker-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"


def available() -> bool:
    """Whether this machine has somebody to look after services."""
    return sys.platform == "win32" or Path("/run/systemd/system").is_dir()


def install(name: str, home: Path) -> str:
    """Starts the worker of this home as a service, now and after every reboot; says how to look."""
    if sys.platform == "win32":
        return _install_task(name, home)
    if not available():
        raise Unavailable(
            "No systemd runs on this machine, so that it keeps no services. Use --foreground, or "
            "--detach, and have whatever starts things here run `corral worker run`."
        )
    unit = unit_path(name)
    unit.parent.mkdir(parents=True, exist_ok=True)
    text = unit_text(home, _systemd_version(), root=_is_root())
    write_durably(unit, text.encode(), mode=0o644)
    if not _is_root():
        # Without it a person's services end when the person logs out.
        subprocess.run(["loginctl", "enable-linger"], check=False, capture_output=True)
    _systemctl("daemon-reload")
    _systemctl("enable", unit.name)
    _systemctl("restart", unit.name)
    scope = "" if _is_root() else "--user "
    return f"The worker runs as the service {name}: `systemctl {scope}status {name}`."


def remove(name: str) -> bool:
    """Stops and forgets the service; whether there was one."""
    if sys.platform == "win32":
        ended = [["schtasks", "/End", "/TN", name], ["schtasks", "/Delete", "/TN", name, "/F"]]
        return [subprocess.run(one, capture_output=True).returncode for one in ended][-1] == 0
    unit = unit_path(name)
    if not unit.exists():
        return False
    if available():
        _systemctl("disable", "--now", unit.name)
    unit.unlink()
    if available():
        _systemctl("daemon-reload")
    return True


# --- systemd ---


def unit_path(name: str) -> Path:
    if _is_root():
        return Path("/etc/systemd/system") / f"{name}.service"
    config = os.path.expanduser("~/.config")
    return Path(config) / "systemd" / "user" / f"{name}.service"


def unit_text(home: Path, systemd: int, *, root: bool) -> str:
    growing = "RestartSteps=6\nRestartMaxDelaySec=60\n" if systemd >= GROWING_PAUSES_SINCE else ""
    return f"""\
[Unit]
Description=Corral worker
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={_exec_line(home)}
Restart=always
RestartSec=2
{growing}RestartPreventExitStatus={" ".join(str(code) for code in sorted(FOR_GOOD) if code)}
KillMode=mixed
Delegate=yes
TimeoutStopSec=90

[Install]
WantedBy={"multi-user.target" if root else "default.target"}
"""


def _exec_line(home: Path) -> str:
    """The current Corral, found anew at every start; its own path, so that one that is switched
    meanwhile does not change under it."""
    software = Software.here()
    if software is None:
        return f"{_quoted(sys.executable)} {RUN} {_quoted(str(home))}"
    script = f'exec "$(readlink -f "$0")/bin/python" {RUN} "$1"'
    return f"/bin/sh -c {_quoted(script)} {_quoted(str(software.current))} {_quoted(str(home))}"


def _quoted(word: str) -> str:
    for mark, safe in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(mark, safe)
    return f'"{word}"'


def _systemd_version() -> int:
    told = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"systemd (\d+)", told.stdout)
    return int(found[1]) if found else 0


def _systemctl(*words: str) -> None:
    scope = [] if _is_root() else ["--user"]
    done = subprocess.run(["systemctl", *scope, *words], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(
            f"systemd did not take the service ({said[-1]}). Run the worker yourself: "
            "`corral worker run`."
        )


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


# --- Windows ---


def task_text(home: Path, python: str, user: str) -> str:
    """Starts when its user logs in, and again a minute after it ended in a bad way."""
    arguments = f'{RUN} "{home}"'
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><UserId>{escape(user)}</UserId></LogonTrigger></Triggers>
  <Principals><Principal id="user"><UserId>{escape(user)}</UserId>
    <LogonType>InteractiveToken</LogonType></Principal></Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
  </Settings>
  <Actions Context="user"><Exec>
    <Command>{escape(python)}</Command>
    <Arguments>{escape(arguments)}</Arguments>
    <WorkingDirectory>{escape(str(home))}</WorkingDirectory>
  </Exec></Actions>
</Task>
"""


def _install_task(name: str, home: Path) -> str:
    windowless = shutil.which("pythonw", path=str(Path(sys.executable).parent)) or sys.executable
    path = home / "worker" / "task.xml"
    path.write_text(task_text(home, windowless, getpass.getuser()), encoding="utf-16")
    for words in (["/Create", "/TN", name, "/XML", str(path), "/F"], ["/Run", "/TN", name]):
        done = subprocess.run(["schtasks", *words], capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(
                f"The Task Scheduler did not take the worker ({done.stderr.strip()}). Run it "
                "yourself: `corral worker run`."
            )
    return f"The worker runs as the task {name} of the Task Scheduler."
