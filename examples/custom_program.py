r"""A custom program: answers twice, the second time after reading the first answer, and keeps both
if they differ.

    python examples/custom_program.py \
        "Jack starts with 5 stickers. Emma brings 2 boxes with 6 each. How many has Jack?"
    lr-sglang run --program examples/custom_program.py:doubt "..."
"""

from __future__ import annotations

import click
import sglang as sgl

import lr_sglang as lr


@sgl.function
def doubt(s, messages, again="Solve it once more, from the beginning."):
    lr.converse(s, messages)
    s += lr.lookahead("first", max_tokens=300)
    s += sgl.assistant_end()
    s += sgl.user(again)
    s += sgl.assistant(lr.lookahead("second", max_tokens=300, depth=3))
    one, two = s["first"].strip(), s["second"].strip()
    s["answer"] = one if one == two else f"{one}\n\n{two}"


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
def main(question: str, deployment: str) -> None:
    with lr.deployment(deployment) as running:
        solution = lr.solve(question, deployment=running, program=doubt)
        click.echo(solution)
        click.echo(solution.record["program"]["answered"])


if __name__ == "__main__":
    main()
