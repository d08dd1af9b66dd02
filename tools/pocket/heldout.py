"""The held-out problems as a task file: ``python -m tools.pocket.heldout`` rewrites it, always the
same.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from lr_sglang.tasks.catalogue import DATA
from tools.pocket.problems import MAX_OPERATIONS, MIN_OPERATIONS, Problem, problems

SEED, COUNT = 2506, 200
TASK_FILE = DATA / "pocket.jsonl"


def held_out_problems(count: int = COUNT) -> list[Problem]:
    """Problems whose structure no pocket model was trained on, as many of each number of
    operations.
    """
    sizes = range(MIN_OPERATIONS, MAX_OPERATIONS + 1)
    streams = [problems(SEED + size, held_out=True, low=size, high=size) for size in sizes]
    return [next(streams[i % len(streams)]) for i in range(count)]


def task_lines(chosen: list[Problem]) -> str:
    """One JSON object a line: id, question, answer, operations."""
    rows = (
        {
            "id": f"pocket-{i:04}",
            "question": p.question,
            "answer": str(p.answer),
            "operations": len(p.operations),
        }
        for i, p in enumerate(chosen, start=1)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=TASK_FILE, help="File to write.")
def main(out: Path) -> None:
    """Write the held-out problems."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(task_lines(held_out_problems()))
    click.echo(f"{COUNT} problems in {out}")


if __name__ == "__main__":
    main()
