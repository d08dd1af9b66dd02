"""``lr-sglang doctor --target URL``: what running servers can do, and which modes pay there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.padding import Padding
from rich.text import Text

from lr_sglang.api import session as sessions
from lr_sglang.api.configuration import Plan
from lr_sglang.cli import streams
from lr_sglang.cli.display import Display, findings, grid
from lr_sglang.cli.settings import Given, settle
from lr_sglang.config import ROLES
from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes import launched

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.doctor.examination import Examination, Expected


LAYERS = (
    "lr-sglang bench --sweep token-layer=none,standalone,fed --modes autoregressive,sd,lossless "
    "--concurrency N"
)


def examined(given: Given) -> None:
    """Examines the servers that the options name, and prints what was found.

    Raises:
        Exit: lookahead cannot run there.
    """
    display = Display(as_json=given["json"])
    found = _examine(given, display)
    command = _command(given, found)
    if given["json"]:
        table = {**asdict(found), "ok": found.able, "command": command}
        streams.write_json(table)
    else:
        _show(found, command, display)
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


def _command(given: Given, found: Examination) -> str:
    """The command to start with: the fastest mode on these servers, or the one that finds it by
    itself where the short answers do not tell, or a fed target does not start it; empty if none was
    measured.
    """
    if not found.modes:
        return ""
    best = None if found.best and found.fed and found.best.mode == "sd" else found.best
    names = ("attach", "deployment", *ROLES, "verifier")
    words = [word for name in names if given.get(name) for word in (f"--{name}", given[name])]
    words += ["--mode", best.mode if best else "auto"]
    words += ["--depth", str(best.depth)] if best and best.depth else []
    return f"lr-sglang run {shlex.join(words)} QUESTION"


def _show(found: Examination, command: str, display: Display) -> None:
    display.out.print(findings(found.lines))
    if found.modes:
        head = ("mode", "tokens/s", "expected", "by the formulas", "best depth")
        modes = [
            [
                one.mode,
                f"{one.pace:.1f}",
                _times(one),
                "" if one.formula is None else f"{one.formula:.2f}x",
                "" if one.depth is None else one.depth,
            ]
            for one in found.modes
        ]
        display.out.print(Padding(grid(head, modes, left=("mode",)), (1, 0)))
    for sentence in _verdict(found, command):
        display.out.print(Text(sentence), soft_wrap=True)


def _times(one: Expected) -> str:
    """A speed-up with its interval, if it has one."""
    ends = f" ({one.low:.2f} to {one.high:.2f})" if one.low and one.high else ""
    return f"{one.speedup:.2f}x{ends}"


def _verdict(found: Examination, command: str) -> Iterator[str]:
    faults = [f"{one.title} ({one.found})" for one in found.lines if one.status == "fault"]
    best = found.best
    if faults:
        yield f"Lookahead cannot run here: {', '.join(faults)}"
    elif best is not None and best is found.modes[0]:
        yield "Lookahead can run here, and does not pay for one answer at a time"
    elif best is not None:
        yield (
            f"Lookahead can run here; fastest in {found.answers} short answers: {best.mode}, "
            f"{_times(best)} the speed of {found.modes[0].mode}"
        )
    else:
        plain = found.modes[0].mode
        faster = [one for one in found.modes if plain in one.surely_faster_than]
        sure = ", ".join(f"{one.mode} {_times(one)}" for one in faster)
        yield (
            f"Lookahead can run here; {found.answers} short answers do not tell which mode is the "
            f"fastest (surely faster than {plain}: {sure or 'none'}): lr-sglang bench with "
            "questions of yours does"
        )
    if found.modes and found.fed:
        yield (
            "sd is here what the server guesses by itself; beside other token layers, each on "
            f"servers of its own and at your load: {LAYERS}"
        )
    if command:
        yield f"start with: {command}"
