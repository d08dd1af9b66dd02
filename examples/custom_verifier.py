r"""A custom verifier: two versions of a step agree if their last numbers are equal.

    python examples/custom_verifier.py \
        "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
    lr-sglang run --verifier examples/custom_verifier.py:Numbers "..."
"""

from __future__ import annotations

import re
from pathlib import Path

import click

import lr_sglang as lr


class Numbers:
    """Accepts a draft whose last ``last`` numbers equal the target's."""

    name = "numbers"

    def __init__(self, last: int) -> None:
        self.last = last

    @classmethod
    def make(cls, setup: lr.Setup) -> Numbers:
        return cls(int(setup.argument or 1))

    def verify(self, inquiry: lr.Inquiry) -> lr.Verdict:
        versions = inquiry.pair.target, inquiry.pair.draft
        ours, theirs = (re.findall(r"\d+", version.text)[-self.last :] for version in versions)
        return lr.Verdict(ours == theirs, self.name, f"{ours} and {theirs}")


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
def main(question: str, deployment: str) -> None:
    with lr.deployment(deployment) as running:
        verifier = f"{Path(__file__)}:Numbers:2"
        solution = lr.solve(question, deployment=running, verifier=verifier, max_tokens=400)
        click.echo(solution)
        for step in solution.steps:
            click.echo(f"{step.outcome:9} {'; '.join(v.reason for v in step.verdicts if v)}")


if __name__ == "__main__":
    main()
