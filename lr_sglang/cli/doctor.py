"""``lr-sglang doctor``: what this machine can do, what is missing, and how to get it; as text for
an issue, too.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.padding import Padding
from rich.text import Text

from lr_sglang.cli import options, streams
from lr_sglang.cli.display import Display, findings, grid
from lr_sglang.config import ROLES
from lr_sglang.doctor.checks import Findings, check_machine
from lr_sglang.doctor.finding import Examination, Expected, Finding, fault
from lr_sglang.errors import LookaheadError
from lr_sglang.results import machine
from lr_sglang.sglang_api import release

if TYPE_CHECKING:
    from lr_sglang.cli.settings import Given

LAYERS = (
    "lr-sglang bench --sweep token-layer=none,standalone,fed --modes autoregressive,sd,lossless "
    "--concurrency N"
)
ALSO_IN_ISSUES = (
    "uvloop",
    "tokenizers",
    "triton",
    "numpy",
    "click",
    "fastapi",
    "uvicorn",
    "math-verify",
    "sglang-router",
)
# Variables that change what we or the servers do.
_SETTINGS = re.compile(
    r"^(LR_SGLANG_|SGLANG_|SGL_|HF_|CUDA_|NCCL_|TORCH|OMP_|XDG_STATE_HOME$|CXX$|LD_PRELOAD$|NO_COLOR$|PYTHONPATH$)"
)
# An address without user, password, query and fragment. A password may hold a comma; the part after
# it ends at one.
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^\s/?#]*@)?(?P<place>[^\s,;'\"?#]*)[^\s,;'\"]*",
    re.IGNORECASE,
)


@click.command()
@options.as_json
@click.option(
    "--report",
    is_flag=True,
    help="Text for an issue: versions, machine, names of settings, without secrets.",
)
@options.runtimes
@options.method
@options.assign()
def doctor(json: bool, report: bool, **given: Any) -> None:
    """Says what this machine can do, what is missing, and how to get it. Nothing is started or
    changed.

    With --target, --attach or --deployment it examines servers that run already, by few and small
    requests: what they can do, what is wrong, and which modes pay. Models that a deployment names
    are started for it, and stopped.

    The exit status is 0 if the embedded default (three small models on the CPU) or models on a GPU
    can run here; of servers, if lookahead can run on them. Otherwise it is 1.

    \b
    Examples:
      lr-sglang doctor
      lr-sglang doctor --json
      lr-sglang doctor --report
      lr-sglang doctor --target http://localhost:30000 --draft http://localhost:30001 --judge target
      lr-sglang doctor --attach qwen3-4gpu
    """
    if json and report:
        raise click.UsageError("--json and --report are two forms of the same: give one of them")
    of_servers = any(given[name] for name in ("deployment", "attach", *ROLES))
    if of_servers and report:
        raise click.UsageError("--report is of this machine: leave the servers out")
    display = Display(as_json=json)
    found: Findings | Examination = _examine(given, display) if of_servers else check_machine()
    command = _command(given, found) if isinstance(found, Examination) else ""
    if json:
        started = {"command": command} if of_servers else {}
        streams.write_json({**asdict(found), "ok": found.able, **started})
    elif isinstance(found, Examination):
        _show(found, list(_verdict(found, command)), display)
    elif report:
        streams.write_output(issue_text(found), nl=False)
    else:
        _show(found, found.verdict, display)
    if not found.able:
        raise click.exceptions.Exit(1)


def _show(found: Findings | Examination, verdict: Sequence[str], display: Display) -> None:
    display.out.print(findings(found.lines))
    if isinstance(found, Examination) and found.modes:
        display.out.print(_modes(found))
    display.out.print()
    for line in verdict:
        display.out.print(Text(line), soft_wrap=True)


def _examine(given: Given, display: Display) -> Examination:
    """Examines what answers: a role that does not is a fault, and the others are examined without
    it.

    Raises:
        LookaheadError: an option is wrong.
    """
    from lr_sglang.api import session as sessions
    from lr_sglang.cli.settings import settle
    from lr_sglang.runtimes import folders

    away = list[Finding]()
    while True:
        try:
            plan = settle(given)
            with display.starting() as progress, folders.temporary_logs() as logs:
                mode = "lookahead" if "draft" in plan.models else "autoregressive"
                needed = plan.needed([mode])
                timeout = plan.deployment.launch_timeout
                with sessions.session(needed, logs, progress, timeout, lean=plan.lean()) as live:
                    progress.finish()
                    # it imports SGLang, which takes seconds
                    from lr_sglang.doctor.examination import examine

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


def _modes(found: Examination) -> Padding:
    """The table of what to expect of each mode."""
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
    return Padding(grid(head, modes, left=("mode",)), (1, 0, 0, 0))


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


def issue_text(found: Findings, variables: Mapping[str, str] = os.environ) -> str:
    """What an issue needs to say, as Markdown, with secrets taken out.

    Args:
        found: what ``doctor`` found.
        variables: the environment; only names that change what we do are shown.
    """
    about = machine.machine()
    versions = machine.versions()
    versions |= {name: release.version(name) for name in ALSO_IN_ISSUES}
    named = [f"- {name}: {version or 'not installed'}" for name, version in versions.items()]
    variables_set = [f"- {name} is set" for name in sorted(variables) if _SETTINGS.match(name)]
    lines = [
        "### What happened",
        "",
        "(what you did, what you saw, what you expected)",
        "",
        "### Versions",
        "",
        *named,
        "",
        "### Machine",
        "",
        f"- system: {about['system']}",
        f"- CPU: {about['cpu']}, {about['cores']} cores",
        f"- GPUs: {', '.join(map(str, about['gpus'])) or 'none'}",
        "",
        "### Settings",
        "",
        *(variables_set or ["- none in the environment"]),
        "",
        "### lr-sglang doctor",
        "",
        "```",
        *(f"{one.status:8}{one.name}: {one.found}" for one in found.lines),
        *found.verdict,
        "```",
    ]
    return without_secrets("\n".join(lines)) + "\n"


def without_secrets(value: str) -> str:
    """The text without credentials and queries in URLs, and without the home directory."""
    value = _URL.sub(r"\g<scheme>\g<place>", value)
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?=/|\b)", "~", value) if len(home) > 1 else value
