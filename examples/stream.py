r"""Streams the steps of an answer; with --compare the target alone answers the same question too.

    python examples/stream.py \
        "Jack starts with 5 stickers. Emma brings 2 boxes with 6 each. How many has Jack?"
"""

from __future__ import annotations

import click

import lr_sglang as lr


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
@click.option("--compare", is_flag=True, help="Answer by the target alone, too.")
def main(question: str, deployment: str, compare: bool) -> None:
    with lr.deployment(deployment) as running:
        steps = lr.stream(question, deployment=running, max_tokens=400)
        for step in steps:
            click.secho(step.text, nl=False, fg="green" if step.source == "draft" else None)
        click.echo(f"\n{steps.solution.seconds:.2f} s, alpha {steps.solution.alpha}")
        if compare:
            alone = lr.solve(question, deployment=running, mode="autoregressive", max_tokens=400)
            click.echo(f"{alone.seconds:.2f} s by the target alone: {alone.answer}")


if __name__ == "__main__":
    main()
