r"""A rule, then the judge: versions with different numbers differ; the judge decides about all
others.

    python examples/composed_verifier.py \
        "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
    lr-sglang run --verifier examples/composed_verifier.py:NumbersThenJudge "..."
"""

from __future__ import annotations

import re
from pathlib import Path

import click

import lr_sglang as lr


class NumbersThenJudge:
    """Rejects a draft whose numbers differ from the target's, and asks the judge about
    every other.
    """

    name = "numbers-then-judge"

    def __init__(self, judge: lr.Verifier) -> None:
        self.judge = judge

    @classmethod
    def make(cls, setup: lr.Setup) -> NumbersThenJudge:
        return cls(lr.make_verifier("judge", setup))

    async def verify(self, inquiry: lr.Inquiry) -> lr.Verdict:
        ours, theirs = (
            set(re.findall(r"\d+", step.text)) for step in (inquiry.pair.target, inquiry.pair.draft)
        )
        if ours != theirs:
            return lr.Verdict(False, self.name, f"{sorted(ours)} and {sorted(theirs)}")
        return await lr.ask(self.judge, inquiry)


@click.command()
@click.argument("question")
@click.option("--deployment", default="pocket", help="Built-in name or TOML file.")
def main(question: str, deployment: str) -> None:
    with lr.deployment(deployment) as running:
        verifier = f"{Path(__file__)}:NumbersThenJudge"
        solution = lr.solve(question, deployment=running, verifier=verifier, max_tokens=400)
        click.echo(solution)
        for step in solution.steps:
            click.echo(
                f"{step.outcome:9} {'; '.join(f'{v.by} {v.reason}' for v in step.verdicts if v)}"
            )


if __name__ == "__main__":
    main()
