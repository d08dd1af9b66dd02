"""``lr-sglang doctor``: what this machine can do, what is missing, and how to get it; as text for
an issue, too.
"""

from __future__ import annotations

import importlib.metadata
import json as json_format
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from lr_sglang.cli import doctor_checks as checks
from lr_sglang.cli import options
from lr_sglang.results import machine
from lr_sglang.runtimes import built_in, load_deployment
from lr_sglang.runtimes.placement import assign, gpus

MARKS = {"ok": ("ok", "green"), "note": ("-", "yellow"), "missing": ("missing", "red")}
FOR_GPUS = "flashinfer-python"  # servers on a CPU are kept from importing it
ALSO = (
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
# MAX_TOKENS and TOKEN_LAYER are none.
_SECRET = re.compile(r"KEY|TOKEN$|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.I)
_LOOKS_SECRET = re.compile(
    r"\b(?:hf|sk|ghp|gho|pk|xox[a-z])[-_][\w-]{8,}|\bBearer\s+\S+|\beyJ[\w-]{10,}\.[\w.-]+"
)
# A password may hold a comma; the part after it ends at one.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^\s/?#]*@)?[^\s,;'\"]*", re.I)
_HIDDEN = "(set, not shown)"


def examine() -> checks.Findings:
    """Runs all checks; a few seconds at most."""
    both = [*checks.system(), checks.sglang(), *checks.packages()]
    for_cpu = [checks.memory(), checks.pack(), checks.pocket_models()]
    seen = gpus.visible()
    for_gpu = list(checks.graphics(seen))
    also = [checks.compiler(), checks.hub()]
    cpu = not any(
        check.status == "missing" for check in (*both, *for_cpu) if check.name != FOR_GPUS
    )
    gpu = bool(seen) and not any(check.status == "missing" for check in (*both, *for_gpu))
    ours = (
        {name: one for name in built_in() if (one := load_deployment(name)).runtimes["target"].gpus}
        if gpu
        else {}
    )
    presets = [name for name, one in ours.items() if assign.fits(one, [gpu.memory for gpu in seen])]
    return checks.Findings(
        [*both, *for_cpu, *for_gpu, *also], cpu, gpu, presets, list(_verdict(cpu, gpu, presets))
    )


def _verdict(cpu: bool, gpu: bool, presets: list[str]) -> Iterator[str]:
    runs = "runs; try lr-sglang demo" if cpu else "cannot run until what is missing above is there"
    yield f"On this CPU: the embedded default {runs}"
    names = f"presets that fit: {', '.join(presets)} (lr-sglang launch NAME)"
    if gpu and not presets:
        names = "the presets need more memory (lr-sglang launch)"
    nothing = (
        "On a GPU: nothing, as none can be used here; a server elsewhere can be given by "
        "its URL (--target URL)"
    )
    yield f"On these GPUs: models of your own; {names}" if gpu else nothing


@click.command()
@options.as_json
@click.option(
    "--report",
    is_flag=True,
    help="Text for an issue: versions, machine, settings; secrets are taken out.",
)
def doctor(json: bool, report: bool) -> None:
    """Says what this machine can do, what is missing, and how to get it. Nothing is started or
    changed.

    The exit status is 0 if the embedded default (three small models on the CPU) or models on a GPU
    can run here. Otherwise it is 1.

    \b
    Examples:
      lr-sglang doctor
      lr-sglang doctor --json
      lr-sglang doctor --report
    """
    if json and report:
        raise click.UsageError("--json and --report are two forms of the same: give one of them")

    found = examine()
    if json:
        table = {**asdict(found), "ok": found.cpu or found.gpu}
        click.echo(json_format.dumps(table, ensure_ascii=False))
    elif report:
        click.echo(issue_text(found), nl=False)
    else:
        _show(found)
    if not (found.cpu or found.gpu):
        raise click.exceptions.Exit(1)


def _show(found: checks.Findings) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found.checks:
        mark, colour = MARKS[check.status]
        text = Text(check.found)
        if check.get:
            text.append(f"\n{check.get}", style="dim")
        table.add_row(Text(mark, style=colour), check.name, text)
    console.print(table)
    console.print()
    for line in found.verdict:
        console.print(Text(line), soft_wrap=True)


def issue_text(found: checks.Findings, variables: Mapping[str, str] = os.environ) -> str:
    """What an issue needs to say, as Markdown, with secrets taken out.

    Args:
        found: what ``doctor`` found.
        variables: the environment; only names that change what we do are shown.
    """
    about = machine.machine()
    lines = [
        "### What happened",
        "",
        "(what you did, what you saw, what you expected)",
        "",
        "### Versions",
        "",
    ]
    lines += [f"- {name}: {version or 'not installed'}" for name, version in _versions()]
    gpus = ", ".join(map(str, about["gpus"])) or "none"
    lines += ["", "### Machine", ""]
    lines += [
        f"- system: {about['system']}",
        f"- CPU: {about['cpu']}, {about['cores']} cores",
        f"- GPUs: {gpus}",
    ]
    lines += ["", "### Settings", ""]
    lines += [f"- `{name}={value}`" for name, value in settings(variables)] or [
        "- none in the environment"
    ]
    lines += ["", "### lr-sglang doctor", "", "```"]
    lines += [f"{check.status:8}{check.name}: {check.found}" for check in found.checks]
    lines += [*found.verdict, "```"]
    return clean("\n".join(lines)) + "\n"


def settings(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that change what we do; of a secret only that it is set, not its value."""
    for name, value in sorted(variables.items()):
        if _SETTINGS.match(name):
            yield (
                name,
                _HIDDEN if _SECRET.search(name) and value else " ".join(clean(value).split()),
            )


def clean(value: str) -> str:
    """The text without data of the user: keys, credentials and queries in URLs, the home
    directory.
    """
    value = _URL.sub(lambda hit: hit["scheme"] + _host(hit[0][len(hit["scheme"]) :]), value)
    value = _LOOKS_SECRET.sub("(secret)", value)
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?=/|\b)", "~", value) if len(home) > 1 else value


def _host(rest: str) -> str:
    """An address without user, password, query and fragment."""
    authority, slash, path = rest.partition("/")
    return (
        authority.rpartition("@")[2].split("?")[0].split("#")[0]
        + slash
        + re.split(r"[?#]", path)[0]
    )


def _versions() -> Iterator[tuple[str, str]]:
    yield from machine.versions().items()
    for name in ALSO:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, ""
    yield "installed as", _way()


def _way() -> str:
    """How lr-sglang is installed: from a checkout or from a package."""
    here = Path(__file__).parents[2]
    kind = "a checkout" if (here / "pyproject.toml").is_file() else "a package"
    virtual = "a virtual environment" if sys.prefix != sys.base_prefix else "the system's Python"
    return f"{kind}, in {virtual}"
