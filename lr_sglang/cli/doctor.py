"""``lr-sglang doctor``: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from dataclasses import asdict

import click

from lr_sglang.cli import doctor_checks as checks
from lr_sglang.cli import options
from lr_sglang.runtimes import built_in, load_deployment
from lr_sglang.runtimes.placement import assign, gpus

MARKS = {"ok": ("ok", "green"), "note": ("-", "yellow"), "missing": ("missing", "red")}

FOR_GPUS = "flashinfer-python"  # servers on a CPU are kept from importing it


def examine() -> checks.Findings:
    """Runs all checks; a few seconds at most."""
    both = [*checks.system(), *checks.sglang(), *checks.packages(), checks.port()]
    for_cpu = [checks.memory(), checks.pack(), checks.pocket_models()]
    seen = gpus.visible()
    for_gpu = list(checks.graphics(seen))
    also = [checks.disk(), checks.compiler(), checks.code_execution(), checks.hub()]
    cpu = not any(check.status == "missing" for check in (*both, *for_cpu) if check.name != FOR_GPUS)
    gpu = bool(seen) and not any(check.status == "missing" for check in (*both, *for_gpu))
    ours = {name: one for name in built_in() if (one := load_deployment(name)).runtimes["target"].gpus} if gpu else {}
    presets = [name for name, one in ours.items() if assign.fits(one, [gpu.memory for gpu in seen])]
    return checks.Findings([*both, *for_cpu, *for_gpu, *also], cpu, gpu, presets, list(_verdict(cpu, gpu, presets)))


def _verdict(cpu: bool, gpu: bool, presets: list[str]) -> Iterator[str]:
    runs = "runs; try lr-sglang demo" if cpu else "cannot run until what is missing above is there"
    yield f"On this CPU: the embedded default {runs}"
    names = f"presets that fit: {', '.join(presets)} (lr-sglang launch NAME)"
    if gpu and not presets:
        names = "the presets need more memory (lr-sglang launch)"
    nothing = "On a GPU: nothing, as none can be used here; a server elsewhere can be given by its URL (--target URL)"
    yield f"On these GPUs: models of your own; {names}" if gpu else nothing


@click.command()
@options.as_json
@click.option("--report", is_flag=True, help="Text for an issue: versions, machine, settings; secrets are taken out.")
def doctor(json: bool, report: bool) -> None:
    """Says what this machine can do, what is missing, and how to get it. Nothing is started or changed.

    The exit status is 0 if the embedded default (three small models on the CPU) or models on a GPU can run here.
    Otherwise it is 1.

    \b
    Examples:
      lr-sglang doctor
      lr-sglang doctor --json
      lr-sglang doctor --report
    """
    from lr_sglang.cli import issue_text

    if json and report:
        raise click.UsageError("--json and --report are two forms of the same: give one of them")

    found = examine()
    if json:
        table = {**asdict(found), "ok": found.cpu or found.gpu}
        click.echo(json_format.dumps(table, ensure_ascii=False))
    elif report:
        click.echo(issue_text.text(found), nl=False)
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
