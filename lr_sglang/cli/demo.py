"""``lr-sglang demo``: both modes side by side on the pocket models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lr_sglang.cli import options

if TYPE_CHECKING:
    from lr_sglang.cli.display import Display

MODES = ("autoregressive", "lookahead")
CLOSING = """\
The pocket models are a demonstration: they are made to fit any machine, and
show how the method works, not what it gains with large models on GPUs."""


@click.command()
@click.option(
    "--questions", type=click.IntRange(1, 190), default=10, show_default=True, help="Held-out problems to answer."
)
@click.option("--temperature", type=float, help="0 is greedy.  [default: the pocket deployment's]")
@click.option("--seed", type=int, help="Of the run.  [default: 0]")
@options.output
def demo(
    questions: int, temperature: float | None, seed: int | None, output: Path | None, json: bool, quiet: bool
) -> None:
    """Answers a few problems in both modes and compares them.

    Three SGLang servers are started on this machine's CPU, with the pocket models that come with the package: small
    enough for any machine, and real enough to show the method at work.

    \b
    Examples:
      lr-sglang demo
      lr-sglang demo --questions 4 --temperature 0
    """
    from lr_sglang import tasks
    from lr_sglang.cli import run_work
    from lr_sglang.cli.run_options import RunOptions
    from lr_sglang.cli.settings import settle
    from lr_sglang.results.store import new_folder
    from lr_sglang.tasks.question import plan

    display = _display(json, quiet)
    held_out = tasks.load("pocket")
    chosen, spare = held_out[:questions], held_out[-1:]
    order = run_work.SampleRun(
        settle(RunOptions(temperature=temperature, seed=seed)),
        chosen,
        MODES,
        {"questions": "pocket", "prompt_suffix": ""},
        warm_up=plan(spare, MODES),
    )
    display.note(f"{len(chosen)} problems, each answered in both modes by three SGLang servers on this machine")
    with run_work.open_store(output or new_folder(Path("runs"), "demo"), order) as store:
        run_work.carry_out(order, store, display)
    display.note(CLOSING)


def _display(as_json: bool, quiet: bool) -> Display:
    """Shows a line a question, with a cell for each mode."""
    from rich.text import Text

    from lr_sglang.cli import formats
    from lr_sglang.cli.display import Display, clean
    from lr_sglang.results.record import Record
    from lr_sglang.results.summary import Running

    class Lines(Display):
        cells: tuple[str, ...] = ()

        def line(self, head: str, cells: tuple[str, ...]) -> None:
            room = min(self.err.width, 100) - 1 - sum(17 for _ in cells)
            text = Text(head)
            text.truncate(room - 1, overflow="ellipsis", pad=True)
            self.err.print(text + Text("".join(cell.rjust(17) for cell in cells)), soft_wrap=True)

        def begin(self, total: int, done: int) -> None:
            if self.chatty:
                self.line("", MODES)

        def sample(self, record: Record, done: int, total: int, so_far: Running) -> None:
            if not self.chatty:
                return
            self.cells += (f"{formats.grade(record)} {record['seconds']:.1f} s",)
            if record["mode"] == MODES[-1]:
                self.line(f"{done // len(MODES):2} {clean(record['question'])}", self.cells)
                self.cells = ()

    return Lines(as_json=as_json, quiet=quiet)
