"""Options that commands share, in groups. None means 'not given': see ``settings`` for what holds then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lr_sglang.config import ROLES

Decorator = Callable[[Any], Any]  # of commands
FOLDER = click.Path(file_okay=False, path_type=Path)


class Gpus(click.ParamType):
    """GPU numbers: ``0`` or ``0,1``."""

    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: give numbers, such as 0 or 0,1", param, ctx)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


runtimes = together(
    click.option("--deployment", metavar="FILE", help="Deployment file or built-in name.  [default: pocket]"),
    *(
        click.option(
            f"--{role}",
            metavar="MODEL|URL",
            help=f"The {role}: a path, hub name, pocket:{role}, server URL, or the role whose runtime it shares.",
        )
        for role in ROLES
    ),
    *(click.option(f"--{role}-gpus", type=Gpus(), help=f"GPUs of the {role}, such as 0,1.") for role in ROLES),
    click.option("--judge-prompt", metavar="NAME", help="paper or pocket.  [default: what suits the judge]"),
    click.option(
        "--launch-timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds to start up."
    ),
)

method = together(
    click.option(
        "--schedule", type=click.Choice(["async", "sync"]), help="Overlap drafts and target.  [default: async]"
    ),
    click.option("--depth", type=int, help="Steps to look ahead.  [default: the deployment's (pocket: 5), or 6]"),
    click.option("--width", type=int, help="Drafted alternatives per step.  [default: 1]"),
    click.option("--max-step-tokens", type=int, help="Tokens of one step.  [default: 100]"),
    click.option(
        "--half-sentence-guard/--no-half-sentence-guard",
        default=None,
        help="Never accept a step after one that was cut.  [default: on]",
    ),
    click.option("--verifier", metavar="NAME", help="judge, exact or random:ALPHA.  [default: judge]"),
    click.option("--reference-defaults", is_flag=True, help="The reference code's depth (4), not the paper's."),
)

sampling = together(
    click.option("--temperature", type=float, help="0 is greedy.  [default: the model family's, or 0.6]"),
    click.option("--top-p", type=float, help="[default: the model family's, or 0.95]"),
    click.option("--top-k", type=int, help="-1 is off.  [default: the model family's (Qwen3: 20), or -1]"),
    click.option("--min-p", type=float, help="[default: 0]"),
    click.option("--seed", type=int, help="Of the run; each branch derives its own.  [default: 0]"),
    click.option("--max-tokens", type=int, help="Tokens of an answer.  [default: what the context holds]"),
    click.option("--max-total-tokens", type=int, help="Tokens of prompt and answer together."),
)

output = together(
    click.option("--output", type=FOLDER, metavar="DIR", help="Where records go.  [default: runs/NAME_DATE_TIME]"),
    click.option("--json", is_flag=True, help="JSON on standard output, and nothing else there."),
    click.option("--quiet", is_flag=True, help="Only results: no progress, no notes."),
)
