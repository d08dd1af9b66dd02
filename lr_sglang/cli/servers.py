"""``lr-sglang doctor --target URL``: what running servers can do."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from lr_sglang.api import session as sessions
from lr_sglang.api.configuration import Plan
from lr_sglang.cli import streams
from lr_sglang.cli.display import Display, findings
from lr_sglang.cli.settings import Given, settle
from lr_sglang.config import ROLES
from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes import launched

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.doctor.examination import Examination


def examined(given: Given) -> None:
    """Examines the servers that the options name, and prints what was found.

    Raises:
        Exit: lookahead cannot run there.
    """
    display = Display(as_json=given["json"])
    found = _examine(given, display)
    if given["json"]:
        streams.write_json({**asdict(found), "ok": found.able})
    else:
        display.out.print(findings(found.lines))
        display.out.print(Text(_verdict(given, found)), soft_wrap=True)
    if not found.able:
        raise click.exceptions.Exit(1)


def _examine(given: Given, display: Display) -> Examination:
    """Examines what answers: a role that does not is a fault, and the others are examined without
    it.

    Raises:
        LookaheadError: an option is wrong.
    """
    from lr_sglang.doctor.examination import Examination, examine, fault
    from lr_sglang.doctor.finding import Finding

    away = list[Finding]()
    while True:
        try:
            plan = settle(given)
            with display.starting() as progress:
                logs = launched.state_home() / "logs" / "doctor"
                needed = _needed(plan)
                timeout = plan.deployment.launch_timeout
                with sessions.session(needed, logs, progress, timeout, lean=plan.lean()) as live:
                    progress.finish()
                    found = examine(live.roles, plan)
            break
        except LookaheadError as error:
            if error.role is None:
                raise
            away.append(fault(error, "server"))
            bare = not (given["deployment"] or given["attach"])
            if not bare or error.role == "target" or not given[error.role]:
                found = Examination()
                break
            given = {**given, error.role: None}
    missing = {one.role for one in away}
    found.lines = away + [one for one in found.lines if one.role not in missing]
    return found


def _needed(plan: Plan) -> Any:
    """The deployment with slots for one answer that looks ahead, as far as it has the roles."""
    return plan.needed(["lookahead" if "draft" in plan.models else "autoregressive"])


def _verdict(given: Given, found: Examination) -> str:
    faults = [f"{one.title} ({one.found})" for one in found.lines if one.status == "fault"]
    if faults:
        return f"Lookahead cannot run here: {', '.join(faults)}"
    names = ("attach", "deployment", *ROLES, "verifier")
    words = [word for name in names if given.get(name) for word in (f"--{name}", given[name])]
    return (
        "Lookahead can run here. Whether it pays, and which mode is the fastest: "
        f"lr-sglang bench {shlex.join(words)}"
    )
