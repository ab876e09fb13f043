"""`corral doctor`: what is well here, what is not, and what to do about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson

if TYPE_CHECKING:
    from corral.doctor.findings import Finding

_SIGNS = {"ok": ("ok", "32"), "warn": ("warn", "33"), "fail": ("FAIL", "31")}


def doctor(
    as_json: AsJson = False,
) -> None:
    """Checks the installation, changes nothing, and says what to do."""
    from corral import settings
    from corral.doctor.findings import examined
    from corral.doctor.machine import checks
    from corral.doctor.place import Place
    from corral.doctor.running import ControllerChecks

    home = settings.default_home()
    found: list[Finding] = []
    for finding in examined([*checks(), *Place(home).checks(), ControllerChecks(home).controller]):
        found.append(finding)
        if not as_json:
            _show(finding)
    failed = sum(finding.status == "fail" for finding in found)
    warned = sum(finding.status == "warn" for finding in found)
    if as_json:
        status = "fail" if failed else "warn" if warned else "ok"
        output.show_json({"status": status, "home": str(home), "findings": found})
    elif failed or warned:
        output.show(f"\n{failed} to mend, {warned} to look at.")
    else:
        output.show("\nAll is well.")
    if failed:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    sign, colour = _SIGNS[finding.status]
    sign = f"{sign:<4}"
    if sys.stdout.isatty():
        sign = f"\x1b[{colour}m{sign}\x1b[0m"
    output.show(f"  {finding.check:<13}  {finding.said}", ours=sign)
    if finding.next:
        output.show(f"{'':<19}  -> {finding.next}")
