"""Answers a file of questions, some in parallel, and counts right answers if the file has them.

python examples/batch.py examples/questions.jsonl --concurrency 4
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

import lr_sglang as lr


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True)
def main(file: Path, deployment: str, concurrency: int) -> None:
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    questions = [row["question"] for row in rows]
    with lr.deployment(deployment) as running, ThreadPoolExecutor(concurrency) as pool:

        def solve(question: str) -> lr.Solution:
            return lr.solve(question, deployment=running, max_tokens=400)

        solutions = list(pool.map(solve, questions))
    for row, solution in zip(rows, solutions, strict=True):
        click.echo(f"{solution.answer!s:8} of {row.get('answer')!s:8} {solution.question[:60]}")
    right = sum(
        solution.answer == str(row.get("answer"))
        for row, solution in zip(rows, solutions, strict=True)
    )
    click.echo(f"{right} of {len(rows)} right")


if __name__ == "__main__":
    main()
