"""Lookahead reasoning from Python: start a deployment, ask a question, and print the steps.

python examples/ask.py "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
python examples/ask.py --deployment my.toml "..."
"""

from __future__ import annotations

from pathlib import Path

import click

import lr_sglang as lr


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
@click.option(
    "--logs", type=click.Path(path_type=Path), default=Path("runs/logs"), help="Where servers log."
)
def main(question: str, deployment: str, logs: Path) -> None:
    with lr.deployment(deployment, logs=logs) as running:
        solution = lr.solve(question, deployment=running, max_tokens=400)
        click.echo(solution)
        for step in solution.steps:
            click.echo(
                f"{step.seconds:6.2f} s  {step.outcome:9}  {step.source:6}  {step.tokens:3} tokens"
            )


if __name__ == "__main__":
    main()
