"""``lr-sglang view``: runs as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lr_sglang.errors import RecordError


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

    read = collection.read(folders)
    made = reports.make(read)
    names = ", ".join(dict.fromkeys(Path(folder).name or folder for folder in read.folders))
    first = collection.path_of(folders[0])
    path = output or (first if first.is_dir() else first.parent) / "view.html"
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8", errors="replace") as file:  # folders may have names that are no text
            file.writelines(page.page(made, title or f"Lookahead Reasoning: {names}"))
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RecordError(f"{path}: cannot be written: {error.strerror}", hint="give another --output") from error
    click.echo(str(path))
