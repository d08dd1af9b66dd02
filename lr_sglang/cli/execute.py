"""What a command asks, how it grades the answers, and where it puts the records; and makes the
samples: servers up, samples made in order, records kept, servers down.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from lr_sglang import plugin_files, tasks
from lr_sglang.bench.order import Order, Turn
from lr_sglang.bench.servers import Caches, alike
from lr_sglang.bench.variants import Key, Variant
from lr_sglang.cli import session as sessions
from lr_sglang.cli import streams
from lr_sglang.cli.display import Display
from lr_sglang.cli.settings import Given
from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError, GradingError, LaunchError, LookaheadError, RecordError
from lr_sglang.grading import Grader
from lr_sglang.json_text import dumped
from lr_sglang.results import machine
from lr_sglang.results.record import Brief, Record, digest, grading_failed, key
from lr_sglang.results.store import RUN, Store, new_folder, write_whole, writing
from lr_sglang.tasks import Question, Task
from lr_sglang.tasks.question import Work
from lr_sglang.tasks.task import SUFFIX

RUNS = Path("runs")


@dataclass(frozen=True)
class Source:
    """The questions of a task or of a file, or that of the command line (without a ``name``)."""

    name: str
    questions: list[Question]
    suffix: str  # appended to each question
    task: Task | None = None

    def grader(self) -> Grader:
        """The grader of the answers; a file of questions is graded as mathematics."""
        return Grader(self.task.grader if self.task else "math")


def of_command(given: Given, question: str | None = None) -> Source:
    """The questions of ``run``.

    Raises:
        UsageError: none or several of a question, a task and a file are given.
        ConfigError: the question is no text; or as ``tasks.load``.
    """
    named = [f"--{name} {given[name]}" for name in ("task", "input") if given[name] is not None]
    if question is None and not named:
        raise click.UsageError("give one QUESTION, or --task NAME, or --input FILE")
    if question is not None and named:
        if given["task"] is not None:
            tasks.get(given["task"])  # a misspelt name is the first that is wrong
        raise click.UsageError(
            f"QUESTION {shorten(question, 40)!r} and {' and '.join(named)} were given: give one"
        )
    if question is None:
        return (
            of_task(given["task"], given, given["input"])
            if given["task"] is not None
            else of_file(given)
        )
    if given["limit"]:
        raise click.UsageError("--limit is for --task and --input")
    text = _text_of(question)
    if not text.strip():
        here = question == "-" and "stdin" in streams.closed
        raise ConfigError(f"the question is empty{': standard input is closed' if here else ''}")
    return Source("", [Question("question", text)], given.get("prompt_suffix") or "")


def _text_of(question: str) -> str:
    """The question of the command line, or that of standard input (``-``), read as a file is; where
    it is not UTF-8, in the encoding of the terminal.
    """
    try:
        raw = sys.stdin.buffer.read() if question == "-" else os.fsencode(question)
        with suppress(UnicodeDecodeError):
            return plugin_files.text_of(raw).removesuffix("\n")
        text = raw.decode(sys.getfilesystemencoding())
        return plugin_files.text_of(text.encode()).removesuffix("\n")
    except UnicodeError as error:
        raise ConfigError(f"the question is not UTF-8 text: {error}") from error


def of_task(name: str, given: Given, file: Path | None = None) -> Source:
    """A task, whose questions may be in a file."""
    found = tasks.get(name)
    return _chosen(name, name, given, found.suffix, found, file)


def of_file(given: Given) -> Source:
    """A file of questions."""
    return _chosen(given["input"].name, given["input"], given, SUFFIX)


def _chosen(
    name: str,
    of: str | Path,
    given: Given,
    suffix: str,
    task: Task | None = None,
    file: Path | None = None,
) -> Source:
    suffix = suffix if given.get("prompt_suffix") is None else given["prompt_suffix"]
    return Source(name, tasks.load(of, given["limit"], file=file), suffix, task)


def folder_for(name: str, given: Given) -> Path:
    """The folder of the records: --output, else a new one in ``runs``."""
    output, resume = given["output"], given.get("resume")
    if output is None:
        if resume:
            raise click.UsageError("--resume goes with --output DIR, which the run was begun in")
        return new_folder(RUNS, re.sub(r"[^\w.-]+", "-", name))
    if resume and not (output / RUN).is_file():
        raise RecordError(
            f"{output}: there is no run in it to resume", hint="without --resume one is begun there"
        )
    return Path(output)


def lacks(asked: Source) -> str:
    """What to say where no answer will be graded; empty if answers will be."""
    task = asked.task
    if task is None or task.grader != "none":
        return ""
    other = f"; lr-sglang report DIR --export {task.export} writes them for {task.export}"
    return f"{task.name}: answers get no grade here{other if task.export else ''}"


def tell_failures(records: Iterable[Brief], display: Display, folder: Path) -> None:
    """Warns if grading failed for some answers, with their number and the reason.

    Raises:
        GradingError: it failed for every answer, so that nothing was graded.
    """
    answers = [record for record in records if not record["error"]]
    failed = grading_failed(answers)
    if not failed:
        return
    reason, again = failed[-1]["grade"]["reason"], f"lr-sglang report {folder} --grade tries again"
    if len(failed) == len(answers):
        raise GradingError(
            f"no answer could be graded: {reason}", hint=f"the answers are kept; {again}"
        )
    display.warn(f"{len(failed)} of {len(answers)} answers could not be graded: {reason}; {again}")


BUSY = 0.25  # share of the processors in use before anything is started, above which it is said


@dataclass
class Execution:
    """The samples to make, and where their records go.

    Attributes:
        command: a benchmark's options, for its run.json; empty for a run.
        graders: by task; without one, the last box is compared with the right answer.
        warm_up: a question that is answered first in every mode on every set of servers, without a
            record.
        stores: by folder, while ``run`` is at work.
        warnings: what may have spoiled a comparison; a benchmark keeps them in run.json.
    """

    folder: Path
    order: Order
    display: Display
    samples: int = 1
    launch_timeout: float = 600.0
    warm_up: str = ""
    command: dict[str, Any] = field(default_factory=dict)
    graders: dict[str, Grader] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=machine.versions)
    stores: dict[str, Store] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def total(self) -> int:
        """Samples."""
        return sum(len(turn.works) for turn in self.order.turns)

    def left(self, turn: Turn) -> list[Work]:
        """The samples of a turn that have no record yet."""
        return [one for one in turn.works if not self.stores[turn.variant.folder].done(one.key)]

    def done(self) -> int:
        """Number of samples that need not be made any more."""
        return self.total - sum(len(self.left(turn)) for turn in self.order.turns)

    def open(self, stack: ExitStack, *, resume: bool) -> None:
        """Opens a store for each folder of records.

        Raises:
            RecordError: as ``Store``, or a record's question differs from the present one of that
                name.
        """
        here = machine.machine()
        for folder in dict.fromkeys(variant.folder for variant in self.order.variants):
            mine = [variant for variant in self.order.variants if variant.folder == folder]
            config = {variant.mode: variant.config for variant in mine}
            about = {
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "samples": self.samples,
                "concurrency": mine[0].concurrency,
                "placement": mine[0].plan.placement(),
                "versions": self.versions,
                "machine": here,
                **({"order": self.order.about} if self.order.about else {}),
            }
            store = self.stores[folder] = stack.enter_context(
                Store(self.folder / folder, config, about, resume=resume)
            )
            if store.cut:
                self.display.note(
                    f"the last record was cut off, and its sample is made again ({store.cut} bytes)"
                )
            if store.unread:
                self.display.warn(f"{store.unread}; their samples are made again")
        asked = {
            (turn.variant.folder, question.id): question
            for turn in self.order.turns
            for question, _ in turn.items
        }
        for folder, store in self.stores.items():
            others = 0
            for record in store.records.values():
                if question := asked.get((folder, record["question_id"])):
                    _check_question(record, question, store.folder)
                others += question is None
            if others:
                self.display.warn(
                    f"{store.folder}: {others} of its records are of questions that are not asked "
                    "now; reports count them too"
                )

    def records(self) -> list[Brief]:
        """The records of all samples in short."""
        works = [(turn.variant, work) for turn in self.order.turns for work in turn.works]
        return [self.stores[variant.folder].records[work.key] for variant, work in works]

    def run(self, *, resume: bool = False) -> list[Brief]:
        """Makes the samples that have no record yet; returns the records of all, in short.

        Raises:
            LookaheadError: servers do not come up, or the target is gone; records so far are kept.
            KeyboardInterrupt: the user stops it; records so far are kept.
        """
        display = self.display
        with ExitStack() as stack:
            self.open(stack, resume=resume)
            stack.enter_context(self._resumable())
            if self.command and self.done() < self.total and (busy := machine.busy()) > BUSY:
                self._spoiled(f"{100 * busy:.0f} % of this machine was busy before the run began")
            self._announce()
            for stretch in self.order.stretches:
                todo = [
                    (turn.variant, works) for turn in stretch.turns if (works := self.left(turn))
                ]
                if not todo:
                    continue
                with ExitStack() as up:
                    variants = list({variant.key: variant for variant, _ in todo}.values())
                    watches = self._servers(stretch.servers, up)
                    from lr_sglang.api.runner import (
                        Runner,
                    )  # SGLang was imported while servers started

                    runners = {}
                    for variant in variants:
                        live = watches[variant.key].live
                        runners[variant.key] = Runner(
                            live.roles,
                            variant.plan,
                            variant.concurrency,
                            asked=variant.asked,
                            versions={**self.versions, **live.versions},
                            on_step=display.on_step,
                            keep=partial(self._keep, variant),
                        )
                        runners[variant.key].check([variant.mode])  # each, before any answer
                    if self.warm_up:
                        self._warm_up(variants, watches)
                    done, caches = self.done(), Caches(self._spoiled)
                    for watch in watches.values():
                        up.callback(watch.servers)
                    up.callback(display.end)
                    display.begin(self.total, done, self.samples)
                    for variant, works in todo:
                        watch = watches[variant.key]
                        if self.order.about:
                            caches.empty(watch.live.roles)
                        with closing(runners[variant.key].run(works, watch.servers)) as made:
                            for record in made:
                                watch.record(record)
                                done += self.stores[variant.folder].done(key(record))
                                shown = {**record, "mode": variant.name}
                                display.sample(shown, done, self.total)
            if self.warnings and self.command:
                self._write_command()
            return self.records()

    def _announce(self) -> None:
        """Says it where several sets of servers will start."""
        left = [stretch for stretch in self.order.stretches if any(map(self.left, stretch.turns))]
        numbers = sorted({number for stretch in left for number in stretch.servers})
        if len(numbers) < 2:
            return
        sets = [self.order.sets[number][0] for number in numbers]
        modes = "; ".join(", ".join(dict.fromkeys(one.name for one in of)) for of in sets)
        how = "all up together" if len(left) == 1 else f"one after the other, {len(left)} starts"
        self.display.note(
            f"{len(numbers)} sets of servers ({modes}), since a token layer is set when a server "
            f"starts: {how}"
        )

    def _keep(self, variant: Variant, record: Record) -> Record:
        """Grades a record, and stores it."""
        if grader := self.graders.get(variant.task):
            record = {**record, **grader.verdict(record)}
        self.stores[variant.folder].append(record)
        return record

    @contextmanager
    def _resumable(self) -> Iterator[None]:
        """Prints how many samples are done, and after an interruption how to go on."""
        if before := self.done():
            self.display.note(f"{before} of {self.total} samples are done already")
        try:
            yield
        except (KeyboardInterrupt, LookaheadError, OSError, SystemExit):  # as of a broken pipe
            if kept := self.done():
                again = f"the same options with --resume --output {self.folder} go on from there"
                self.display.warn(f"{kept} of {self.total} samples are kept; {again}")
            raise

    def _servers(self, numbers: Sequence[int], up: ExitStack) -> dict[Key, Watch]:
        """Starts sets of servers that are up at the same time; servers that are alike in several
        sets start once.
        """
        known: dict[str, Runtime] = {}
        watches: dict[Key, Watch] = {}
        lean = all(variant.plan.lean() for variant in self.order.variants)
        for number in numbers:
            variants, wanted = self.order.sets[number]
            logs = self.folder / "logs" / (f"set-{number + 1}" if self.command else "")
            runtimes = {
                role: known.get(alike(role, one), one) for role, one in wanted.runtimes.items()
            }
            with self.display.starting() as progress:
                opened = sessions.session(
                    wanted.replace(runtimes=runtimes),
                    logs,
                    progress,
                    self.launch_timeout,
                    lean=lean,
                )
                live = up.enter_context(opened)
            wants = [sessions.Wanted(one.plan, [one.mode], one.concurrency) for one in variants]
            sessions.tell_faults(live.roles, variants[0].plan, self.display)
            sessions.tell_room(live.roles, wants, self.display)
            known |= {
                alike(role, wanted.runtimes[role]): one for role, one in live.started().items()
            }
            for backend in live.roles.values():
                backend.doubts.warn = self._spoiled
            watches |= dict.fromkeys(
                (variant.key for variant in variants), Watch(live, self.display)
            )
        if self.command:
            started = {
                "servers": [number + 1 for number in numbers],
                "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
            self._write_command(started)
        return watches

    def _write_command(self, *started: dict[str, Any]) -> None:
        """Writes run.json: the command, its order, when which servers started (again, after a
        resumption), and warnings.
        """
        path = self.folder / RUN
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = {}
        about = {
            "order": self.order.about,
            "starts": [*earlier.get("starts", ()), *started],
            "warnings": list(dict.fromkeys([*earlier.get("warnings", ()), *self.warnings])),
        }
        with writing(path):
            write_whole(path, {**self.command, **about})

    def _spoiled(self, warning: str) -> None:
        """Warns of something that may have spoiled the comparison."""
        self.warnings.append(warning)
        self.display.warn(warning)

    def _warm_up(self, variants: Sequence[Variant], watches: Mapping[Key, Watch]) -> None:
        """Makes one answer in each mode on each set of servers, without a record and without effect
        on policies.
        """
        from lr_sglang.api.runner import Runner

        warmed = set()
        for variant in variants:
            watch = watches[variant.key]
            if (variant.mode, id(watch)) not in warmed:
                warmed.add((variant.mode, id(watch)))
                work = [Work(Question("warm-up", self.warm_up), 0, variant.mode)]
                list(Runner(watch.live.roles, variant.plan).run(work, watch.servers))


def _check_question(record: Brief, question: Question, folder: Path) -> None:
    """Checks that a record is of the question as it is now.

    Raises:
        RecordError: it is of another one, or its right answer or another field was another one.
    """
    if record.asked == digest(question.question, question.answer, question.extra):
        return
    if record["question"] != question.question:
        raise RecordError(
            f"{folder}: question {question.id} was another one then",
            hint="the file of questions has changed; give another --output",
        )
    before = {"answer": record["gold"], **(record.whole().get("extra") or {})}
    now = {"answer": question.answer, **json.loads(dumped(question.extra))}
    name = next(name for name in {**now, **before} if before.get(name) != now.get(name))
    then, is_now = (shorten(str(one.get(name)), 40) for one in (before, now))
    raise RecordError(
        f"{folder}: {name!r} of question {question.id} was {then} then, and is {is_now} now",
        hint=f"lr-sglang report {folder} --grade --key FILE takes what is new over; or give "
        "another --output",
    )


def need_an_answer(records: Sequence[Brief]) -> None:
    """Raises the error of the last record if all of them have one."""
    if records and all(record["error"] for record in records):
        error = records[-1]["error"]
        raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])


class Watch:
    """Warns once of each failure of draft or judge, while the answers go on without them."""

    def __init__(self, live: sessions.Session, display: Display) -> None:
        self.live, self.display = live, display
        self.told = set[str]()
        if "judge" in live.roles:  # its warning that it is not trusted
            live.roles["judge"].checks.warn = display.warn

    def servers(self) -> None:
        """Looks for servers that have ended; the end of the target's is its ``LaunchError``."""
        if self.live.fleet is not None:
            self.live.fleet.check(self._ended)

    def _ended(self, error: LaunchError) -> None:
        self.told.add(error.role or "")
        self.display.warn(f"{error}; answers go on without it, slower but no worse")

    def record(self, record: Record) -> None:
        """Looks for failures that a sample survived."""
        self.servers()
        for role in record["failures"].keys() - self.told:
            self.told.add(role)
            why = record.get("causes", {}).get(role, "no cause is known")
            self.display.warn(
                f"{role}: it failed ({why}); answers go on without it where need be, slower but no "
                "worse"
            )
