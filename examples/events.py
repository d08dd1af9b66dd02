r"""Prints every event of an answer, one per line.

    python examples/events.py \
        "Jack starts with 5 stickers. Emma brings 2 boxes with 6 each. How many has Jack?"
"""

from __future__ import annotations

from collections import Counter

import click

import lr_sglang as lr


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
def main(question: str, deployment: str) -> None:
    seen: Counter[str] = Counter()

    def tell(event: lr.Event) -> None:
        seen[event.kind] += 1
        text = event.text.strip()
        click.echo(
            f"{event.seconds:6.2f} s  {event.kind:9} step {event.position:2}  {event.role:6} {text}"
        )

    with lr.deployment(deployment) as running:
        lr.solve(question, deployment=running, max_tokens=400, on_event=tell)
    click.echo(", ".join(f"{kind} {count}" for kind, count in seen.items()))


if __name__ == "__main__":
    main()
