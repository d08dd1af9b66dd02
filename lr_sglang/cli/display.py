"""What a command shows while it works: results on standard output, everything else on standard
error; and figures as people read them: a line for a sample, a table for many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from lr_sglang.results.record import Record, acceptance_figure, doubts_of, is_exact
from lr_sglang.results.store import RECORDS
from lr_sglang.steps.trace import StepRecord

if TYPE_CHECKING:  # a slow import, which plan need not wait for
    from lr_sglang.doctor.finding import Finding
    from lr_sglang.runtimes import ProgressEvent


ANSWER_WIDTH = 60  # characters of an answer in a line of others


def grid(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    left: Collection[str] = (),
    apart: int = 2,
) -> Table:
    """A table without lines, in which no word of a cell is broken: columns aligned right, except
    those in ``left``, whose cells have one line each; ``apart`` spaces between them.
    """
    table = Table(box=None, padding=(0, apart, 0, 0), header_style="bold")
    body = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    for number, name in enumerate(head):
        cells = [name, *(row[number].plain for row in body)]
        whole = name in left
        unbroken = cells if whole else [word for cell in cells for word in cell.split(" ")]
        table.add_column(
            Text(name),
            justify="left" if whole else "right",
            no_wrap=whole,
            min_width=max(map(len, unbroken)),
        )
    for row in body:
        table.add_row(*row)
    return table


# Of findings, by their status.
STATUS_COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}


def findings(lines: Iterable[Finding]) -> Table:
    """A table of findings: a status, a name, what was found, and below it what to do, if
    anything.
    """
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in lines:
        text = Text(one.found)
        if one.advice:
            text.append(f"\n{one.advice}", style="dim")
        table.add_row(Text(one.status, style=STATUS_COLOURS[one.status]), one.title, text)
    return table


def grade_word(record: Record) -> str:
    """Whether the answer is right, as far as that is known."""
    if record["error"]:
        return "failed"
    if (record.get("grade") or {}).get("failed"):
        return "not graded"
    return {True: "correct", False: "wrong", None: ""}[record["correct"]]


def sample_line(record: Record, *, numbered: bool = False) -> str:
    """One sample in one line; ``numbered`` where a question has several."""
    name = record["question_id"] + (f" #{record['sample']}" if numbered else "")
    if record["error"]:
        return f"{name}  {record['mode']}  failed: {record['error']['message']}"
    parts = (
        name,
        record["mode"],
        answer_line(record),
        grade_word(record),
        f"{record['seconds']:.1f} s",
    )
    return "  ".join(part for part in parts if part)


def answer_line(record: Record) -> str:
    """The answer in one line: the final answer, or else the last words of the text."""
    words = record["answer"] or next(
        (one for one in reversed(record["text"].splitlines()) if one.strip()), ""
    )
    words = " ".join(words.split())
    return words if len(words) <= ANSWER_WIDTH else words[: ANSWER_WIDTH - 1] + "…"


def count(number: int, of: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {of}{'' if number == 1 else 's'}"


def of_sample(record: Record) -> list[str]:
    """One sample in a few lines."""
    if record["error"]:
        return [f"failed: {record['error']['message']}"]
    tokens = record["tokens"]
    lines = []
    if record["answer"] is not None or record["gold"] is not None:
        gold = f" (gold: {record['gold']})" if record["gold"] is not None else ""
        lines.append(f"answer: {record['answer'] or 'none'}{gold} {grade_word(record)}".rstrip())
    seconds = record["seconds"]
    rate = f", {tokens['used'] / seconds:.1f} tokens/s" if seconds else ""
    ended = "; ended by the token limit" if record["finish"] == "length" else ""
    written = f"{count(len(record['steps']), 'step')}, {count(tokens['used'], 'token')}"
    lines.append(f"{written} in {seconds:.2f} s{rate}{ended}")
    if tokens["draft"]["calls"]:
        name, value = acceptance_figure(record, exact=is_exact(record))
        counted = (
            f"{record['agreed_tokens']} of {record['read_tokens']} tokens"
            if name == "agreement"
            else f"{record['accepted']} of {record['judged']}"
        )
        compared = "" if value is None else f"{name} {value:.2f} ({counted}), "
        lines.append(
            f"{compared}{count(tokens['wasted'], 'token')} wasted, "
            f"{count(tokens['judge']['calls'], 'judge call')}"
        )
    lines += doubts_of([record])
    names = {"judge": "verifier"}
    causes = record.get("causes", {})
    lines += [
        f"{names.get(r, r)} failed {count(n, 'time')} ({causes.get(r, '')}): slower, not wrong"
        for r, n in record["failures"].items()
    ]
    return lines


# Mark, colour and meaning of a step, by its outcome.
MARKS = {"accepted": ("+", "green", "drafted"), "corrected": ("~", "yellow", "corrected")}
OWN_MARK = ("|", "cyan", "the target's own")
# Control characters, which a model's text may hold and the terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Starting(AbstractContextManager["Starting"]):
    """The stage that each role has reached: one line that changes on a terminal, else a line for
    each event.
    """

    def __init__(self, console: Console, shown: bool) -> None:
        self.console = console
        self.shown = shown
        self._stages: dict[str, str] = {}
        line = shown and console.is_terminal
        self._status = Status("starting", console=console) if line else None

    def __call__(self, event: ProgressEvent) -> None:
        self._stages[event.role] = f"{event.role} {event.stage} {event.seconds:.0f} s"
        if self._status is not None:
            self._status.start()
            self._status.update(self._said())
        elif self.shown:
            self.console.print(f"{event.role}: {event.stage} ({event.seconds:.0f} s)")

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Ends the line; leaves one with the stages that were reached."""
        if self._status is not None and self._stages:
            self._status.stop()
            self.console.print(Text(f"runtimes: {self._said()}", style="dim"))
            self._stages.clear()

    def _said(self) -> str:
        return ", ".join(self._stages.values())


class Display:
    """Shows one command's work. ``as_json`` and ``quiet`` silence everything but results and
    warnings.

    Args:
        answers: whether each of many answers is a result, a line on standard output.
    """

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, answers: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.answers = answers
        self.out = Console(highlight=False, soft_wrap=False)
        self.err = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._single = False
        self._numbered = False
        self._marks: dict[str, None] = {}  # of the steps that were printed

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
        mark, colour, _ = MARKS.get(step.outcome, OWN_MARK)
        text = without_control(step.text).strip()
        if self.out.is_terminal:
            line = Table.grid(padding=(0, 1))
            line.add_row(Text(mark, style=f"bold {colour}"), Text(text))
            self.out.print(line)
        else:  # without line breaks of our own
            self.out.print(Text(f"{mark} " + text.replace("\n", "\n  ")), soft_wrap=True)
        self._marks[mark] = None

    def single(self, record: Record, folder: Path) -> None:
        """The result of the only question."""
        if self.quiet:
            self.out.file.write(without_control(record["text"]).strip() + "\n")
            return
        # no steps were printed
        if not self._marks and (text := without_control(record["text"]).strip()):
            self.out.print(Text(text), soft_wrap=True)
        if record["tokens"]["draft"]["calls"] and self._marks:
            legend = Text()
            for mark, colour, meaning in (*MARKS.values(), OWN_MARK):
                if mark in self._marks:
                    legend.append(f"{mark} ", style=f"bold {colour}")
                    legend.append(f"{meaning}  ", style="dim")
            self.err.print(legend)
        for line in of_sample(record):
            self.note(line)
        self.note(f"record: {folder / RECORDS}")

    # -- many questions

    def begin(self, total: int, done: int, samples: int = 1) -> None:
        """Starts the progress bar. A single answer shows its steps instead.

        Args:
            samples: answers of a question in one mode.
        """
        self._numbered = samples > 1
        self._single = self.answers and total == 1
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
        self._task = self._bar.add_task("answering", total=total, completed=done)

    def sample(self, record: Record, done: int, total: int) -> None:
        """Shows that one more sample is complete."""
        if self._single:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        said = without_control(sample_line(record, numbered=self._numbered))
        if self.answers and self.chatty:
            self.out.print(Text(said), soft_wrap=True)
        elif self._bar is None:
            self.note(f"{done}/{total}  {said}")

    def end(self) -> None:
        """Closes the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def without_control(text: str) -> str:
    """The text without control characters that a terminal would obey."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))
