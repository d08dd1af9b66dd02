"""``lr-sglang report``: tables and plots of runs, and their HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options, streams
from lr_sglang.cli.failures import warn
from lr_sglang.tasks.task import EXPORTS

if TYPE_CHECKING:
    from rich.console import Console

    from lr_sglang.cli.display import Display
    from lr_sglang.results.report import Report


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option("--plots", type=options.FOLDER, metavar="DIR", help="PNG and SVG go here.")
@click.option("--html", type=options.FILE, metavar="FILE", help="One page with every step.")
@click.option("--grade", is_flag=True, help="Grade the answers again first, and keep the grades.")
@click.option(
    "--key",
    metavar="FILE|TASK",
    help="With --grade: the questions whose right answers count from now on.",
)
@click.option(
    "--export",
    type=options.WordChoice([*EXPORTS, "pairs"]),
    help="Write the programs in the answers for another grader, or pairs: both versions of the "
    "steps, to train a draft with; into DIR, and no table.",
)
@click.option("--json", is_flag=True, help="Every figure, as JSON instead of tables.")
def report(
    folders: tuple[str, ...],
    plots: Path | None,
    html: Path | None,
    grade: bool,
    key: str | None,
    export: str | None,
    json: bool,
) -> None:
    """Tables and plots of runs, and one HTML page; several folders are put together.

    DIR... are folders with records.jsonl, or folders of such folders; or files of bench.figures,
    which become one table. The page has questions, step
    trees with both versions and verdicts, timelines and figures. It holds everything, loads nothing
    from anywhere, and can be sent to others: with the questions and answers in it.

    \b
    Examples:
      lr-sglang report runs/pocket_20260101_120000 --plots plots
      lr-sglang report runs/pocket_20260101_120000 --html page.html
      lr-sglang report runs/gsm8k_20260101_120000 --grade
      lr-sglang report runs/mine --grade --key corrected.csv
      lr-sglang report runs/humaneval_20260101_120000 --export evalplus
      lr-sglang report runs/gsm8k_20260101_120000 --export pairs
    """
    from rich.console import Console

    from lr_sglang.results import charts, collection, figures, page, store
    from lr_sglang.results import report as reports

    if key and not grade:
        raise click.UsageError("--key goes with --grade")
    if grade:
        from lr_sglang.grading.regrade import regrade

        for run in _runs(folders):
            click.echo(f"{run}: {regrade(run, key or '')}", err=True)
    if export == "pairs":
        from lr_sglang.results import pairs

        for run in _runs(folders):
            for made_of in pairs.export_pairs(partial(store.each_record, run, cache(warn)), run):
                streams.write_output("\n".join(map(str, made_of.files)))
                click.echo(made_of.words(), err=True)
        return
    if export is not None:
        from lr_sglang.grading import export as programs

        for run in _runs(folders):
            for path in programs.export_answers(export, store.each_record(run, warn), run):
                streams.write_output(str(path))
        return
    files = [figures.read_figures(Path(one)) for one in folders]
    if all(files):
        _show_figures([one for one in files if one], as_json=json)
        return
    made = reports.make_report(collection.read_runs(folders))
    if json:
        streams.write_output(reports.report_json(made), nl=False)
    else:
        show_report(made, Console(highlight=False))
    if plots is not None:
        none = "no plots: they compare modes with one without lookahead; run both kinds"
        for line in list(map(str, charts.draw_plots(made, plots))) or [none]:
            click.echo(line, err=True)
    if html is not None:
        pieces = page.page(made, f"Lookahead Reasoning: {', '.join(made.collection.names)}")
        with store.writing(html, "give another --html"):  # a folder's name may be no text
            store.replace_file(html, (piece.encode("utf-8", "replace") for piece in pieces))
        click.echo(str(html), err=True)


def _show_figures(files: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Prints the figures of several machines in one table."""
    from rich.console import Console

    from lr_sglang.cli.display import grid, without_control
    from lr_sglang.results import figures

    if as_json:
        streams.write_json(files)
        return
    rows, about = figures.table(files)
    console = Console(highlight=False)
    cleaned = ([without_control(cell) for cell in row] for row in rows)
    console.print(grid(figures.FIGURE_COLUMNS, cleaned, left=figures.LEFT_FIGURE_COLUMNS))
    for line in about:
        console.print(without_control(line), markup=False, soft_wrap=True)


def _runs(folders: Sequence[str]) -> list[Path]:
    """The folders of runs in those that are given."""
    from lr_sglang import plugin_files
    from lr_sglang.results import collection

    found = [run for one in folders for run in collection.folders_in(plugin_files.expanded(one))]
    return [run.parent if run.is_file() else run for run in found]


def tell(folder: Path, display: Display) -> None:
    """Prints the report of the run in a folder, and how to get plots and a page."""
    from lr_sglang.results import collection
    from lr_sglang.results import report as reports

    made = reports.make_report(collection.read_runs([folder]))
    if display.as_json:
        streams.write_output(reports.report_json(made), nl=False)
        return
    show_report(made, display.out)
    display.note(f"records: {folder}")
    display.note(f"plots: lr-sglang report {folder} --plots {folder / 'plots'}")
    display.note(f"a page: lr-sglang report {folder} --html {folder / 'page.html'}")


def show_report(made: Report, console: Console) -> None:
    """Prints all tables, and the verdicts."""
    from rich.console import Console
    from rich.text import Text

    from lr_sglang.cli.display import grid, without_control

    console.print(Text(without_control(made.collection.models), style="bold"), soft_wrap=True)
    for table in made.tables:
        console.print(Text(without_control(table.title), style="bold"))
        if made.warning:
            console.print(Text(f"({made.warning})", style="yellow"))
        rows = ([without_control(cell) for cell in row] for row in table.rows)
        shown = grid([without_control(name) for name in table.columns], rows, left=("task", "mode"))
        widest = console.measure(shown, options=console.options.update(width=1000)).minimum
        wide = Console(file=console.file, width=max(console.width, widest), highlight=False)
        wide.print(shown, crop=False)
        console.print(Text(f"{without_control(table.note)}\n", style="dim"))
    for verdict in made.verdicts:
        lines = [without_control(line) for line in verdict.words()]
        lines += [f"({made.warning})"] if made.warning else []
        console.print(Text("\n".join(lines), style="bold"), soft_wrap=True)
    for note in made.collection.notes:
        console.print(Text(without_control(note), style="yellow"), soft_wrap=True)
