"""``lr-sglang demo``: both modes side by side on the pocket models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lr_sglang.cli import options

if TYPE_CHECKING:
    from lr_sglang.cli.display import Display

SMALL = ("autoregressive", "lookahead")
CLOSING = """\
The pocket models are a demonstration: they know one kind of problem. In the larger
body the target's words are theirs, and its cost is that of 199 million parameters."""


@click.command()
@click.option("--questions", type=click.IntRange(1, 190), help="Problems to answer.  [default: 4; with --small 10]")
@click.option("--small", is_flag=True, help="The target as it is, 6 million parameters, in two modes.")
@click.option("--temperature", type=float, help="0 is greedy.  [default: the deployment's]")
@click.option("--seed", type=int, help="Of the run.  [default: 0]")
@options.output
def demo(
    questions: int | None,
    small: bool,
    temperature: float | None,
    seed: int | None,
    output: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """Answers a few problems in the four modes and compares them.

    Three SGLang servers are started on this machine's CPU, with the pocket models that come with the package, and then
    three whose target has a token layer. The target is in a larger body, so that it is bound by memory as a large model
    is.

    \b
    Examples:
      lr-sglang demo
      lr-sglang demo --small
    """
    from lr_sglang import tasks
    from lr_sglang.cli import run_work
    from lr_sglang.cli.run_options import RunOptions
    from lr_sglang.cli.settings import settle
    from lr_sglang.modes import MODES
    from lr_sglang.results.store import new_folder
    from lr_sglang.tasks.question import plan

    modes = SMALL if small else tuple(name for name, mode in MODES.items() if mode.token_layer is not None)
    held_out = tasks.load("pocket")
    chosen, spare = held_out[: questions or (10 if small else 4)], held_out[-1:]
    asked = RunOptions(temperature=temperature, seed=seed, deployment="pocket" if small else "pocket-body", mode=modes)
    settled = settle(asked)
    order = run_work.SampleRun(
        settled, chosen, modes, {"questions": "pocket", "prompt_suffix": ""}, warm_up=plan(spare, modes)
    )
    display = _display(settled.server_sets(modes), json, quiet)
    display.note(f"{len(chosen)} problems, each answered in {len(modes)} modes by SGLang servers on this machine")
    with run_work.open_store(output or new_folder(Path("runs"), "demo"), order) as store:
        run_work.carry_out(order, store, display)
    display.note(CLOSING)


def _display(sets: list[list[str]], as_json: bool, quiet: bool) -> Display:
    """Shows a line a question, with a cell for each mode of a set of servers."""
    from rich.text import Text

    from lr_sglang.cli import formats
    from lr_sglang.cli.display import Display, clean
    from lr_sglang.results.record import Record
    from lr_sglang.results.summary import Running

    class Lines(Display):
        cells: tuple[str, ...] = ()
        set = begun = 0

        def line(self, head: str, cells: tuple[str, ...]) -> None:
            room = min(self.err.width, 100) - 1 - sum(17 for _ in cells)
            text = Text(head)
            text.truncate(room - 1, overflow="ellipsis", pad=True)
            self.err.print(text + Text("".join(cell.rjust(17) for cell in cells)), soft_wrap=True)

        def begin(self, total: int | None, done: int, what: str = "") -> None:
            self.begun = done
            if self.chatty:
                self.line("", tuple(sets[self.set]))

        def sample(self, record: Record, done: int, total: int, so_far: Running) -> None:
            if not self.chatty:
                return
            self.cells += (f"{formats.grade(record)} {record['seconds']:.1f} s",)
            if record["mode"] == sets[self.set][-1]:
                number = (done - self.begun) // len(sets[self.set])
                self.line(f"{number:2} {clean(record['question'])}", self.cells)
                self.cells = ()

        def end(self) -> None:
            self.set += 1
            super().end()

    return Lines(as_json=as_json, quiet=quiet)
