"""``lr-sglang report``: tables and plots of runs, and their HTML page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from lr_sglang.cli import options, runs
from lr_sglang.tasks.task import EXPORTS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lr_sglang.results.report import Report
    from lr_sglang.results.tables import Table


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option(
    "--format",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    help="json has every figure.",
)
@click.option("--plots", type=options.FOLDER, metavar="DIR", help="PNG and SVG go here.")
@click.option("--html", type=options.FILE, metavar="FILE", help="One page with every step.")
@click.option("--output", type=options.FILE, metavar="FILE", help="Not standard output.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 100),
    default=2.0,
    help="Points of accuracy that may be lost and still count as kept.",
)
@click.option("--grade", is_flag=True, help="Grade the answers again first, and keep the grades.")
@click.option(
    "--export",
    type=click.Choice(EXPORTS),
    help="Write the programs in the answers for another grader, into DIR, and no table.",
)
def report(
    folders: tuple[str, ...],
    format: str,
    plots: Path | None,
    html: Path | None,
    output: Path | None,
    margin: float,
    grade: bool,
    export: str | None,
) -> None:
    """Tables and plots of runs, and one HTML page; several folders are put together.

    DIR... are folders with records.jsonl, or folders of such folders. The page has questions, step
    trees with both versions and verdicts, timelines and figures. It holds everything, loads nothing
    from anywhere, and can be sent to others: with the questions and answers in it.

    \b
    Examples:
      lr-sglang report runs/pocket_20260101_120000 --plots plots
      lr-sglang report runs/pocket_20260101_120000 --html page.html
      lr-sglang report runs --format markdown --output results.md
      lr-sglang report runs/gsm8k_20260101_120000 --grade
      lr-sglang report runs/humaneval_20260101_120000 --export evalplus
    """
    from rich.console import Console

    from lr_sglang.results import charts, collection, page, store
    from lr_sglang.results import report as reports

    if grade:
        from lr_sglang.grading.regrade import regrade

        for run in _runs(folders):
            click.echo(f"{run}: {regrade(run)}", err=True)
    if export is not None:
        from lr_sglang.grading import export as programs

        for run in _runs(folders):
            for path in programs.export(export, runs.read(run), run):
                click.echo(str(path))
        return
    made = reports.make(collection.read(folders), margin / 100)
    forms = {
        "markdown": reports.markdown,
        "json": reports.as_json,
        "text": _plain,
    }
    if output is not None:
        with store.writing(output):  # a folder's name may be no text
            output.write_text(forms[format](made), encoding="utf-8", errors="replace")
    elif format == "text":
        show(made, Console(highlight=False))
    else:
        click.echo(forms[format](made), nl=False)
    if plots is not None:
        for path in charts.draw(made, plots):
            click.echo(str(path), err=True)
    if html is not None:
        names = dict.fromkeys(Path(folder).name or folder for folder in made.collection.folders)
        pieces = page.page(made, f"Lookahead Reasoning: {', '.join(names)}")
        with store.writing(html, "give another --html"):  # a folder's name may be no text
            store.replace_file(html, (piece.encode("utf-8", "replace") for piece in pieces))
        click.echo(str(html), err=True)


def _runs(folders: Sequence[str]) -> list[Path]:
    """The folders of runs in those that are given."""
    from lr_sglang import plugin_files
    from lr_sglang.results import collection

    found = [run for one in folders for run in collection.folders_in(plugin_files.expanded(one))]
    return [run.parent if run.is_file() else run for run in found]


def _plain(made: Report) -> str:
    """The tables as text for a file."""
    from rich.console import Console

    file = io.StringIO()
    show(made, Console(file=file, width=200, highlight=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show(made: Report, console: Console) -> None:
    """Prints all tables, and the verdicts."""
    from rich.text import Text

    from lr_sglang.cli.display import clean

    for table in made.tables:
        shown, width = grid(table, made.warning)
        console.print(shown, width=max(console.width, width), crop=False)
        console.print()
    for verdict in made.verdicts:
        lines = [clean(line) for line in verdict.words()]
        lines += [f"({made.warning})"] if made.warning else []
        console.print(Text("\n".join(lines), style="bold"), soft_wrap=True)
    for note in made.collection.notes:
        console.print(Text(clean(note), style="yellow"), soft_wrap=True)


def grid(table: Table, warning: str) -> tuple[RenderableType, int]:
    """A table for a terminal, and the width at which no word of a cell is broken.

    Tasks are headings in it, so that it is narrow, and the warning is part of it.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    from lr_sglang.cli.display import clean

    by_task = table.columns[0] == "task"
    apart = 2 if len(table.columns) <= 7 else 1
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, apart, 0, 0), pad_edge=False, show_edge=False)
    widest = []
    for number, name in enumerate(table.columns[by_task:]):
        cells = [clean(row[number + by_task]) for row in table.rows]
        widest.append(
            max(len(w) for cell in cells for w in (cell.split(" ") if number else [cell]))
        )
        justify: Literal["left", "right"] = "right" if number else "left"
        grid.add_column(Text(clean(name)), justify=justify, vertical="bottom", min_width=widest[-1])
    tasks = list(dict.fromkeys(row[0] for row in table.rows)) if by_task else []
    task = ""
    for row in table.rows:
        if len(tasks) > 1 and row[0] != task:
            task = row[0]
            grid.add_section()
            grid.add_row(Text(clean(task), style="bold"))
        grid.add_row(*(Text(clean(cell)) for cell in row[by_task:]))
    title = Text(
        clean(table.title) + (f", {clean(tasks[0])}" if len(tasks) == 1 else ""), style="bold"
    )
    parts: list[RenderableType] = (
        [title, Text(f"({warning})", style="yellow")] if warning else [title]
    )
    return Group(*parts, grid, Text(clean(table.note), style="dim")), sum(widest) + 2 * len(widest)
