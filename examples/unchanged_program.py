"""A SGLang program that knows nothing of lookahead reasoning, answered by it.

    python examples/unchanged_program.py "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
"""

from __future__ import annotations

import click
import sglang as sgl

import lr_sglang as lr


@sgl.function
def converse_and_judge(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=400, temperature=0))
    s += sgl.user("Is that more than 20?")
    s += sgl.assistant(sgl.gen("more", choices=["yes", "no"]))


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
def main(question: str, deployment: str) -> None:
    with lr.deployment(deployment) as running:
        backend = running.backend(depth=4)
        sgl.set_default_backend(backend)
        state = converse_and_judge.run(question)
        click.echo(state["answer"])
        click.echo(f"more than 20: {state['more']}; answered by {dict(backend.counts)}")


if __name__ == "__main__":
    main()
