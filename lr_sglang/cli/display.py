"""What a command shows while it works: results on standard output, everything else on standard
error.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from lr_sglang.cli import formats
from lr_sglang.results.brief import Brief
from lr_sglang.results.record import Record
from lr_sglang.results.store import RECORDS
from lr_sglang.results.summary import Running, summarise
from lr_sglang.runtimes import ProgressEvent
from lr_sglang.steps.trace import StepRecord

READY = ("ready", "attached")  # stages of a server
# Mark and colour of a step, by its outcome.
MARKS = {"accepted": ("+", "green"), "corrected": ("~", "yellow")}
EVERY = 60.0  # seconds between two lines about the time left, where there is no progress bar
OWN = ("|", "cyan")
LEGEND = (
    ("+", "green", "drafted"),
    ("~", "yellow", "corrected"),
    ("|", "cyan", "the target's own"),
)
# Control characters, which a model's text may hold and the terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Starting:
    """One line per role with its stage and a clock; without a terminal, one line per event."""

    def __init__(self, console: Console, shown: bool) -> None:
        self.console, self.shown = console, shown
        self._began = time.monotonic()
        self._stages: dict[str, tuple[str, float]] = {}
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __call__(self, event: ProgressEvent) -> None:
        self._stages[event.role] = (event.stage, event.seconds)
        if self.shown and not self.console.is_terminal:
            self.console.print(f"{event.role}: {event.stage} ({event.seconds:.0f} s)")

    def __enter__(self) -> Starting:
        if self.shown and self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Ends the live display; leaves one line with the stages that were reached."""
        if self._live.is_started:
            self._live.stop()
            ready = [f"{role} {stage} {at:.0f} s" for role, (stage, at) in self._stages.items()]
            self.console.print(Text("runtimes: " + ", ".join(ready), style="dim"))

    def __rich__(self) -> Table:
        table = Table.grid(padding=(0, 2))
        now = time.monotonic() - self._began
        stages = list(self._stages.items())  # copied: this is rich's thread, and others add stages
        for role, (stage, at) in stages:
            ready = stage in READY
            sign: RenderableType = Text("+", style="bold green") if ready else self._spinner
            table.add_row(
                sign,
                role,
                Text(stage, style="green" if ready else ""),
                f"{at if ready else now:.0f} s",
            )
        if stages and all(stage in READY for _, (stage, _) in stages):
            table.add_row(self._spinner, "SGLang", "importing", f"{now:.0f} s")
        return table


class Display:
    """Shows one command's work. ``as_json`` and ``quiet`` silence everything but results and
    warnings.

    Args:
        answers: whether each of many answers is a result, a line on standard output.
    """

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, answers: bool = False
    ) -> None:
        self.as_json, self.quiet, self.answers = as_json, quiet, answers
        self.out = Console(highlight=False, soft_wrap=False)
        self.err = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._single, self._steps = False, 0
        self._began = self._said = 0.0  # when, by the monotonic clock
        self._had = 0  # samples, when it began

    @property
    def chatty(self) -> bool:
        """Whether notes and progress are shown."""
        return not (self.as_json or self.quiet)

    def note(self, text: str) -> None:
        """Prints a note, unless ``as_json`` or ``quiet``."""
        if self.chatty:
            self.err.print(Text(text, style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Prints a warning, also if ``quiet``."""
        self.err.print(Text("Warning: ", style="yellow") + Text(text, style="none"), soft_wrap=True)

    def starting(self) -> Starting:
        """Progress of servers, for ``launch``; a context manager."""
        return Starting(self.err, self.chatty)

    # -- one question

    @property
    def on_step(self) -> Callable[[object, StepRecord], None] | None:
        """The callback that prints the steps of a single question; None prints none."""
        return (lambda _, step: self.step(step)) if self.answers else None

    def step(self, step: StepRecord) -> None:
        """Prints a step of the single question."""
        if not (self.chatty and self._single and step.text.strip()):
            return
        mark, colour = MARKS.get(step.outcome, OWN)
        text = clean(step.text).strip()
        if self.out.is_terminal:
            line = Table.grid(padding=(0, 1))
            line.add_row(Text(mark, style=f"bold {colour}"), Text(text))
            self.out.print(line)
        else:  # without line breaks of our own
            self.out.print(Text(f"{mark} " + text.replace("\n", "\n  ")), soft_wrap=True)
        self._steps += 1

    def single(self, record: Record, folder: Path) -> None:
        """The result of the only question."""
        if self.as_json:
            self.out.file.write(json.dumps(dict(record), ensure_ascii=False) + "\n")
            return
        if self.quiet:
            self.out.file.write(clean(record["text"]).strip() + "\n")
            return
        if not self._steps and (text := clean(record["text"]).strip()):  # no steps were printed
            self.out.print(Text(text), soft_wrap=True)
        if record["tokens"]["draft"]["calls"] and self._steps:
            legend = Text()
            for mark, colour, meaning in LEGEND:
                legend.append(f"{mark} ", style=f"bold {colour}").append(
                    f"{meaning}  ", style="dim"
                )
            self.err.print(legend)
        for line in formats.of_sample(record):
            self.note(line)
        self.note(f"record: {folder / RECORDS}")

    # -- many questions

    def begin(self, total: int | None, done: int, what: str = "answering") -> None:
        """Starts the progress bar; ``total`` is None if not known yet. A single answer shows its
        steps instead.
        """
        self._single = self.answers and total == 1
        self._began, self._had = time.monotonic(), done
        self._said = self._began
        if self._single or not (self.chatty and self.err.is_terminal):
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.err,
            expand=True,
            # on a terminal, answers are printed above the bar
            redirect_stdout=self.out.is_terminal,
        )
        self._bar.start()
        self._task = self._bar.add_task(what, total=total, completed=done)

    def update(self, done: int, total: int) -> None:
        """Moves the progress bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def sample(self, record: Record, done: int, total: int, so_far: Running) -> None:
        """Shows that one more sample is complete."""
        if self._single:
            return
        if self._bar is not None:
            self._bar.update(
                self._task, completed=done, description=formats.brief(so_far.figures())
            )
        if self.answers and self.chatty:
            self.out.print(Text(clean(formats.line(record))), soft_wrap=True)
        elif self._bar is None:
            self.note(f"{done}/{total}  {clean(formats.line(record))}")
        now = time.monotonic()
        if (
            now - self._said >= EVERY and done > self._had and not self.err.is_terminal
        ):  # there the bar shows it
            self._said = now
            minutes = (now - self._began) / (done - self._had) * (total - done) / 60
            self.note(
                f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"
            )

    def end(self) -> None:
        """Closes the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def many(self, records: list[Brief], folder: Path) -> None:
        """The figures of all samples."""
        if self.as_json:
            table = {"output": str(folder), "samples": len(records), "summary": summarise(records)}
            self.out.file.write(json.dumps(table, ensure_ascii=False) + "\n")
            return
        self.out.print(comparison(records))
        self.note(f"records: {folder / RECORDS}")


def comparison(records: list[Brief]) -> RenderableType:
    """A table of the figures, a column a mode."""
    modes, rows = formats.table(records)
    apart = 3 if len(modes) <= formats.MAX_WITH_COUNTS else 1
    return Padding(
        formats.grid(("", *modes), ((name, *cells) for name, cells in rows), ("",), apart), (1, 0)
    )


def clean(text: str) -> str:
    """The text without control characters that a terminal would obey."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))
