"""``lr-sglang demo``: modes side by side on the pocket models."""

from __future__ import annotations

from typing import Any

import click

from lr_sglang import tasks
from lr_sglang.bench import order
from lr_sglang.cli import formats, options, source
from lr_sglang.cli.display import Display, clean
from lr_sglang.cli.execute import Execution, execute, need_an_answer
from lr_sglang.cli.settings import settle
from lr_sglang.modes import MODES

SMALL = ("autoregressive", "lookahead")
CELL = 17  # characters of a mode's answer
CLOSING = """\
The pocket models are a demonstration: they know one kind of problem. In the larger
body the target's words are theirs, and its cost is that of 199 million parameters."""


@click.command()
@click.option("--questions", type=click.IntRange(1, 190), help="Problems to answer.  [default: 4; with --small 10]")
@click.option("--small", is_flag=True, help="The target as it is, 6 million parameters, in two modes.")
@click.option("--temperature", type=float, help="0 is greedy.  [default: the deployment's]")
@click.option("--seed", type=int, help="Of the run.  [default: 0]")
@options.output
def demo(questions: int | None, small: bool, **given: Any) -> None:
    """Answers a few problems in the four modes and compares them.

    Three SGLang servers are started on this machine's CPU, with the pocket models that come with the package, and then
    three whose target has a token layer. The target is in a larger body, so that it is bound by memory as a large model
    is.

    \b
    Examples:
      lr-sglang demo
      lr-sglang demo --small
    """
    modes = SMALL if small else tuple(name for name, mode in MODES.items() if mode.token_layer is not None)
    held_out = tasks.load("pocket")
    chosen, spare = held_out[: questions or (10 if small else 4)], held_out[-1].question
    plan = settle({**given, "deployment": "pocket" if small else "pocket-body", "mode": modes})
    made = order.side_by_side(plan, "pocket", "", order.samples_of(chosen, 1))
    display = _display(made.sets, given["json"], given["quiet"])
    display.note(f"{len(chosen)} problems, each answered in {len(modes)} modes by SGLang servers on this machine")
    folder = source.folder_for("demo", given)
    records = execute(Execution(folder, made, display, warm_up=spare))
    display.many(records, folder)
    need_an_answer(records)
    display.note(CLOSING)


def _display(sets: Any, as_json: bool, quiet: bool) -> Display:
    """Shows a line a question, with a cell for each mode of a set of servers."""
    from rich.text import Text

    modes = iter([variant.modes for (variant,), _ in sets])

    class Lines(Display):
        modes: tuple[str, ...] = ()
        cells: tuple[str, ...] = ()
        begun = 0

        def line(self, head: str, cells: tuple[str, ...]) -> None:
            text = Text(head)
            text.truncate(min(self.err.width, 100) - 2 - CELL * len(cells), overflow="ellipsis", pad=True)
            self.err.print(text + Text("".join(cell.rjust(CELL) for cell in cells)), soft_wrap=True)

        def begin(self, total: int | None, done: int, what: str = "") -> None:
            self.begun, self.modes, self.cells = done, next(modes), ()
            if self.chatty:
                self.line("", self.modes)

        def sample(self, record: Any, done: int, total: int, so_far: Any) -> None:
            self.cells += (f"{formats.grade(record)} {record['seconds']:.1f} s",)
            if self.chatty and len(self.cells) == len(self.modes):
                number = (done - self.begun) // len(self.modes)
                self.line(f"{number:2} {clean(record['question'])}", self.cells)
                self.cells = ()

    return Lines(as_json=as_json, quiet=quiet)
