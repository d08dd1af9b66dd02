"""``lr-sglang doctor``: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lr_sglang.cli import options

if TYPE_CHECKING:
    from lr_sglang.cli.doctor_work import Findings

MARKS = {"ok": ("ok", "green"), "note": ("-", "yellow"), "missing": ("missing", "red")}


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
    from lr_sglang.cli import doctor_work, issue_text

    if json and report:
        raise click.UsageError("--json and --report are two forms of the same: give one of them")

    found = doctor_work.examine()
    if json:
        table = {**asdict(found), "ok": found.cpu or found.gpu}
        click.echo(json_format.dumps(table, ensure_ascii=False))
    elif report:
        click.echo(issue_text.text(found), nl=False)
    else:
        _show(found)
    if not (found.cpu or found.gpu):
        raise click.exceptions.Exit(1)


def _show(found: Findings) -> None:
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
