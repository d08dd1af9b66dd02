"""``lr-sglang report``: tables and plots of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lr_sglang.results.report import Report
    from lr_sglang.results.tables import Table


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option(
    "--format",
    type=click.Choice(["text", "markdown", "json", "csv"]),
    default="text",
    help="json and csv have every figure.",
)
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="PNG and SVG go here.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Not standard output.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 100),
    default=2.0,
    help="Points of accuracy that may be lost and still count as kept.",
)
def report(folders: tuple[str, ...], format: str, plots: Path | None, output: Path | None, margin: float) -> None:
    """Tables and plots of runs; several folders are put together.

    DIR... are folders with records.jsonl, or folders of such folders. Result folders of the paper's own code are read
    too; as their files do not say in which mode they were made, say it: lookahead=DIR, or lookahead@TASK=DIR.

    \b
    Examples:
      lr-sglang report runs/pocket_20260101_120000 --plots plots
      lr-sglang report runs --format markdown --output results.md
      lr-sglang report autoregressive=AIME_20251031_1 lookahead=AIME_20251031_2
    """
    from lr_sglang.results import collection, store
    from lr_sglang.results import report as reports

    made = reports.make(collection.read(folders), margin / 100)
    if output is not None:
        with store.writing(output):
            output.write_text(_text(made, format), encoding="utf-8", errors="replace")  # a folder's name may be no text
    elif format == "text":
        from rich.console import Console

        show(made, Console(highlight=False))
    else:
        click.echo(_text(made, format), nl=False)
    if plots is not None:
        from lr_sglang.results import plots as pictures

        for path in pictures.draw(made, plots):
            click.echo(str(path), err=True)


def _text(made: Report, form: str) -> str:
    from lr_sglang.results import formats

    if form != "text":
        return {"markdown": formats.markdown, "json": formats.as_json, "csv": formats.as_csv}[form](made)
    import io

    from rich.console import Console

    file = io.StringIO()
    show(made, Console(file=file, width=200, highlight=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show(made: Report, console: Console) -> None:
    """Prints all tables."""
    from rich.text import Text

    from lr_sglang.cli.display import clean

    for table in made.tables:
        console.print(grid(table, made.warning), width=max(console.width, _narrowest(table)), crop=False)
        console.print()
    for note in made.collection.notes:
        console.print(Text(clean(note), style="yellow"), soft_wrap=True)


def _narrowest(table: Table) -> int:
    """The width at which no word of a cell is broken; a narrower terminal breaks lines as it likes."""
    columns = list(zip(*table.rows, strict=True))[table.columns[0] == "task" :]
    words = [max((len(w) for cell in column for w in cell.split(" ")), default=0) for column in columns]
    return sum(words[1:]) + max(map(len, columns[0])) + 2 * len(columns)


def grid(table: Table, warning: str) -> RenderableType:
    """A table for a terminal: tasks are headings in it, so that it is narrow, and the warning is part of it."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    from lr_sglang.cli.display import clean

    by_task = table.columns[0] == "task"
    apart = 2 if len(table.columns) <= 7 else 1
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, apart, 0, 0), pad_edge=False, show_edge=False)
    for number, name in enumerate(table.columns[by_task:]):
        side: Literal["left", "right"] = "right" if number else "left"
        cells = [clean(row[number + by_task]) for row in table.rows]
        least = max(len(w) for cell in cells for w in (cell.split(" ") if number else [cell]))
        grid.add_column(Text(clean(name)), justify=side, vertical="bottom", min_width=least)
    tasks = list(dict.fromkeys(row[0] for row in table.rows)) if by_task else []
    task = ""
    for row in table.rows:
        if len(tasks) > 1 and row[0] != task:
            task = row[0]
            grid.add_section()
            grid.add_row(Text(clean(task), style="bold"))
        grid.add_row(*(Text(clean(cell)) for cell in row[by_task:]))
    title = Text(clean(table.title) + (f", {clean(tasks[0])}" if len(tasks) == 1 else ""), style="bold")
    parts: list[RenderableType] = [title, Text(f"({warning})", style="yellow")] if warning else [title]
    return Group(*parts, grid, Text(clean(table.note), style="dim"))
