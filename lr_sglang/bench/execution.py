"""Makes the samples of a run or benchmark: servers up, samples made in order, records kept, servers
down.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

from lr_sglang.api import session as sessions
from lr_sglang.bench.order import Order, Turn
from lr_sglang.bench.servers import Caches, server_key, spared
from lr_sglang.bench.variants import Variant, VariantKey
from lr_sglang.config import Runtime
from lr_sglang.errors import LaunchError, LookaheadError, RecordError
from lr_sglang.grading import Grader
from lr_sglang.json_text import dumped
from lr_sglang.results import machine
from lr_sglang.results.record import Brief, Record, digest, key
from lr_sglang.results.store import (
    RECORDS,
    RUN_FILE,
    Store,
    own_folder,
    run_json,
    told_before,
    write_whole,
    writing,
)
from lr_sglang.runtimes import ProgressEvent
from lr_sglang.steps.trace import StepRecord
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import Work

BUSY = 0.25  # share of the processors in use before anything is started, above which it is said


class Observer(Protocol):
    """Is told what happens while samples are made."""

    @property
    def on_step(self) -> Callable[[Work, StepRecord], None] | None:
        """Called with each step of each sample, on the event loop; None where it shows none."""

    def note(self, text: str) -> None:
        """Something to know."""

    def warn(self, text: str) -> None:
        """Something that may be wrong."""

    def starting(self) -> AbstractContextManager[Callable[[ProgressEvent], None]]:
        """What is told how far servers are, while they start."""

    def begin(self, total: int, done: int, samples: int) -> None:
        """Samples are made from now on; ``samples``: of a question in one mode."""

    def sample(self, record: Record, done: int, total: int) -> None:
        """One more sample is complete."""

    def end(self) -> None:
        """No more samples are made."""


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
    observer: Observer
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
            RecordError: as ``Store``; the folder has the results of another benchmark; or a
                record's question differs from the present one of that name.
        """
        if self.command:
            stack.enter_context(own_folder(self.folder))
            self._check_benchmark()
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
                self.observer.note(
                    f"the last record was cut off, and its sample is made again ({store.cut} bytes)"
                )
            if store.unread:
                self.observer.warn(f"{store.unread}; their samples are made again")
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
                self.observer.warn(
                    f"{store.folder}: {others} of its records are of questions that are not asked "
                    "now; reports count them too"
                )

    def _check_benchmark(self) -> None:
        """Checks that run.json, which will be replaced, is of a benchmark of the same variants, or
        of one without records.
        """
        if not (self.folder / RUN_FILE).exists():
            return
        other = told_before(self.folder, "variants").keys() ^ self.command["variants"].keys()
        if other and any(path.stat().st_size for path in self.folder.glob(f"*/{RECORDS}")):
            raise RecordError(
                f"{self.folder} has the results of another benchmark (only one has "
                f"{shorten(', '.join(sorted(other)), 120)})",
                hint="resume with the same options, or give another --output",
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
        observer = self.observer
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
                    # SGLang was imported while servers started
                    from lr_sglang.api.runner import Runner

                    runners = {}
                    for variant in variants:
                        live = watches[variant.key].live
                        runners[variant.key] = Runner(
                            live.roles,
                            variant.plan,
                            variant.concurrency,
                            asked=variant.asked,
                            versions={**self.versions, **live.versions},
                            on_step=observer.on_step,
                            keep=partial(self._keep, variant),
                        )
                        runners[variant.key].check([variant.mode])  # each, before any answer
                    if self.warm_up:
                        self._warm_up(variants, watches)
                    done = self.done()
                    caches = Caches(self._spoiled)
                    for watch in watches.values():
                        up.callback(watch.servers)
                    up.callback(observer.end)
                    observer.begin(self.total, done, self.samples)
                    for variant, works in todo:
                        watch = watches[variant.key]
                        if self.order.about:
                            caches.empty(watch.live.roles)
                        with closing(runners[variant.key].run(works, watch.servers)) as made:
                            for record in made:
                                watch.record(record)
                                done += self.stores[variant.folder].done(key(record))
                                shown = {**record, "mode": variant.name}
                                observer.sample(shown, done, self.total)
            if self.warnings and self.command:
                self._write_command()
            return self.records()

    def _announce(self) -> None:
        """Says it where several sets of servers will start, or no draft."""
        left = [stretch for stretch in self.order.stretches if any(map(self.left, stretch.turns))]
        numbers = sorted({number for stretch in left for number in stretch.servers})
        for text in {spared(*self.order.sets[number]) for number in numbers} - {""}:
            self.observer.note(text)
        if len(numbers) < 2:
            return
        sets = [self.order.sets[number][0] for number in numbers]
        modes = "; ".join(", ".join(dict.fromkeys(one.name for one in of)) for of in sets)
        how = "all up together" if len(left) == 1 else f"one after the other, {len(left)} starts"
        self.observer.note(
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
            self.observer.note(f"{before} of {self.total} samples are done already")
        try:
            yield
        except (KeyboardInterrupt, LookaheadError, OSError, SystemExit):  # as of a broken pipe
            if kept := self.done():
                again = f"the same options with --resume --output {self.folder} go on from there"
                self.observer.warn(f"{kept} of {self.total} samples are kept; {again}")
            raise

    def _servers(self, numbers: Sequence[int], up: ExitStack) -> dict[VariantKey, FailureWatch]:
        """Starts sets of servers that are up at the same time; servers that are alike in several
        sets start once.
        """
        known: dict[str, Runtime] = {}
        watches: dict[VariantKey, FailureWatch] = {}
        lean = all(variant.plan.lean() for variant in self.order.variants)
        for number in numbers:
            variants, wanted = self.order.sets[number]
            logs = self.folder / "logs" / (f"set-{number + 1}" if self.command else "")
            runtimes = {
                role: known.get(server_key(role, one), one) for role, one in wanted.runtimes.items()
            }
            with self.observer.starting() as progress:
                opened = sessions.session(
                    wanted.replace(runtimes=runtimes),
                    logs,
                    progress,
                    self.launch_timeout,
                    lean=lean,
                )
                live = up.enter_context(opened)
            wants = [sessions.Wanted(one.plan, [one.mode], one.concurrency) for one in variants]
            sessions.tell_faults(live.roles, variants[0].plan, self.observer.warn)
            sessions.tell_room(live.roles, wants, self.observer.warn)
            known |= {
                server_key(role, wanted.runtimes[role]): one for role, one in live.started().items()
            }
            for backend in live.roles.values():
                backend.doubts.warn = self._spoiled
            watches |= dict.fromkeys(
                (variant.key for variant in variants), FailureWatch(live, self.observer)
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
        path = self.folder / RUN_FILE
        earlier = run_json(self.folder)
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
        self.observer.warn(warning)

    def _warm_up(
        self, variants: Sequence[Variant], watches: Mapping[VariantKey, FailureWatch]
    ) -> None:
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


class FailureWatch:
    """Warns once of each failure of draft or judge, while the answers go on without them."""

    def __init__(self, live: sessions.Session, observer: Observer) -> None:
        self.live = live
        self.observer = observer
        self.told = set[str]()
        if "judge" in live.roles:  # its warning that it is not trusted
            live.roles["judge"].checks.warn = observer.warn

    def servers(self) -> None:
        """Looks for servers that have ended; the end of the target's is its ``LaunchError``."""
        if self.live.fleet is not None:
            self.live.fleet.check(self._ended)

    def _ended(self, error: LaunchError) -> None:
        self.told.add(error.role or "")
        self.observer.warn(f"{error}; answers go on without it, slower but no worse")

    def record(self, record: Record) -> None:
        """Looks for failures that a sample survived."""
        self.servers()
        for role in record["failures"].keys() - self.told:
            self.told.add(role)
            why = record.get("causes", {}).get(role, "no cause is known")
            self.observer.warn(
                f"{role}: it failed ({why}); answers go on without it where need be, slower but no "
                "worse"
            )
