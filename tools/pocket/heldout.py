"""The held-out problems as a task file: ``python -m tools.pocket.heldout`` rewrites it, always the
same. With ``--training COUNT`` a file of problems of the training side, whose structures are none of
the held-out ones, for what a draft is to learn from its answers (``tools.pocket.learn``).
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from lr_sglang.tasks.catalogue import DATA_FOLDER
from tools.pocket.problems import MAX_OPERATIONS, MIN_OPERATIONS, Problem, problems

SEED, COUNT = 2506, 200
TASK_FILE = DATA_FOLDER / "pocket.jsonl"


def held_out_problems(count: int = COUNT) -> list[Problem]:
    """Problems whose structure no pocket model was trained on, as many of each number of
    operations.
    """
    return _of_each_size(count, held_out=True)


def training_problems(count: int) -> list[Problem]:
    """Problems of the training side, as many of each number of operations."""
    return _of_each_size(count, held_out=False)


def _of_each_size(count: int, *, held_out: bool) -> list[Problem]:
    sizes = range(MIN_OPERATIONS, MAX_OPERATIONS + 1)
    streams = [problems(SEED + size, held_out=held_out, low=size, high=size) for size in sizes]
    return [next(streams[i % len(streams)]) for i in range(count)]


def task_lines(chosen: list[Problem], name: str = "pocket") -> str:
    """One JSON object a line: id, question, answer, operations."""
    rows = (
        {
            "id": f"{name}-{i:04}",
            "question": p.question,
            "answer": str(p.answer),
            "operations": len(p.operations),
        }
        for i, p in enumerate(chosen, start=1)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=TASK_FILE, help="File to write.")
@click.option(
    "--training", type=int, metavar="COUNT", help="Problems of the training side instead."
)
def main(out: Path, training: int | None) -> None:
    """Write the held-out problems, or some of the training side."""
    if training is not None and out == TASK_FILE:
        raise click.UsageError("--training goes with --out: the default file is the task's")
    lines = (
        task_lines(held_out_problems())
        if training is None
        else task_lines(training_problems(training), "training")
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(lines)
    click.echo(f"{lines.count(chr(10))} problems in {out}")


if __name__ == "__main__":
    main()
