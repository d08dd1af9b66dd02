"""``lr-sglang view``: runs as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="[default: view.html in the first folder]",
)
@click.option("--title", help="[default: the folders' names]")
def view(folders: tuple[str, ...], output: Path | None, title: str | None) -> None:
    """Writes one HTML page: questions, step trees with both versions and verdicts, timelines, figures.

    The page holds everything, loads nothing from anywhere, and can be sent to others: with the questions and answers
    in it. DIR... are as for report.

    \b
    Examples:
      lr-sglang view runs/pocket_20260101_120000
      lr-sglang view runs/a runs/b --output both.html
    """
    from lr_sglang.results import collection, page
    from lr_sglang.results import report as reports
    from lr_sglang.results.store import replace_file, writing

    read = collection.read(folders)
    made = reports.make(read)
    names = ", ".join(dict.fromkeys(Path(folder).name or folder for folder in read.folders))
    first = collection.path_of(folders[0])
    path = output or (first if first.is_dir() else first.parent) / "view.html"
    pieces = page.page(made, title or f"Lookahead Reasoning: {names}")
    with writing(path):
        replace_file(path, (piece.encode("utf-8", "replace") for piece in pieces))  # a folder's name may be no text
    click.echo(str(path))
