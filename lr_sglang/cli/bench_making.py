"""Carrying out a benchmark: servers up as its schedule says, samples made in turn, records kept, servers down."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.bench.caches import Caches
from lr_sglang.bench.schedule import Stretch
from lr_sglang.bench.variants import Variant
from lr_sglang.cli.bench_servers import Runners, runners_of, up
from lr_sglang.cli.display import Display
from lr_sglang.cli.run_work import Watch, about_run, resumable, warm_up
from lr_sglang.config import Deployment
from lr_sglang.grading import Grader
from lr_sglang.results import machine
from lr_sglang.results.record import key
from lr_sglang.results.store import RUN, Store, write_whole, writing
from lr_sglang.results.summary import Running
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import Work

if TYPE_CHECKING:
    from lr_sglang.api.runner import Runner

EVERY = 60.0  # seconds between two words about the time that is left, where no bar shows it
Item = tuple[Question, int]  # and which sample of it


@dataclass
class Bench:
    """What is to be done.

    Attributes:
        sets: by number, the variants that share servers, and the deployment that they need.
        about: for run.json: what was asked for and in which order it is made.
        graders: by task.
    """

    folder: Path
    variants: Sequence[Variant]
    sets: Sequence[tuple[Sequence[Variant], Deployment]]
    stretches: Sequence[Stretch[Variant, Item]]
    about: dict[str, Any]
    graders: Mapping[str, Grader] = field(default_factory=dict)
    launch_timeout: float = 600.0
    samples: int = 1
    versions: dict[str, str] = field(default_factory=machine.versions)

    @property
    def logs(self) -> Path:
        """Of the servers."""
        return self.folder / "logs"

    def open(self, stack: ExitStack, *, resume: bool) -> dict[str, Store]:
        """A store for each folder of records.

        Raises:
            RecordError: as ``Store``.
        """
        stores, here = {}, machine.machine()
        for folder in dict.fromkeys(variant.folder for variant in self.variants):
            mine = [variant for variant in self.variants if variant.folder == folder]
            about = about_run(mine[0].plan, self.samples, mine[0].concurrency, self.versions, here)
            about["order"] = self.about["order"]
            config = {variant.mode: variant.config for variant in mine}
            stores[folder] = stack.enter_context(Store(self.folder / folder, config, about, resume=resume))
        return stores


@dataclass
class Clock:
    """How long it will still take, said every minute."""

    total: int
    _began: float = 0.0
    _had: int = 0
    _said: float = 0.0

    def begin(self, done: int) -> None:
        """Servers are up, and samples follow."""
        self._began = self._said = time.monotonic()
        self._had = done

    def left(self, done: int) -> str:
        """What to say now; empty for nothing."""
        now = time.monotonic()
        if now - self._said < EVERY or done <= self._had:
            return ""
        self._said = now
        minutes = (now - self._began) / (done - self._had) * (self.total - done) / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


@dataclass
class Making:
    """A benchmark at work."""

    bench: Bench
    stores: Mapping[str, Store]
    display: Display
    began: list[dict[str, Any]] = field(default_factory=list)
    _made: dict[tuple[str, str], Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = sum(len(turn.items) for stretch in self.bench.stretches for turn in stretch.turns)
        self.done = self._count()
        self._clock = Clock(self.total)
        self._caches = Caches(self.display.warn)

    def run(self) -> None:
        """Makes the samples that have no record yet.

        Raises:
            LookaheadError: servers do not come up, or the target is gone; the records that there are stay.
            KeyboardInterrupt: the user wants no more; the records that there are stay.
        """
        with resumable(self._count, self.total, self.bench.folder, self.display):
            try:
                for stretch in self.bench.stretches:
                    self._stretch(stretch)
            finally:
                self.display.end()

    def _stretch(self, stretch: Stretch[Variant, Item]) -> None:
        todo = [(turn.variant, works) for turn in stretch.turns if (works := self._todo(turn.variant, turn.items))]
        if not todo:
            return
        with up(self.bench.sets, stretch.servers, self.bench.logs, self.bench.launch_timeout, self.display) as live:
            self._note_start(stretch.servers)
            runners = runners_of(live, {variant.key: variant for variant, _ in todo}, self.bench.versions, self.display)
            with ExitStack() as stack:
                for _, runner in runners.values():
                    stack.enter_context(runner)
                self._warm_up(runners, [variant for variant, _ in todo], todo[0][1][0].question)
                self.display.begin(self.total, self.done)
                self._clock.begin(self.done)
                before: Variant | None = None
                for variant, works in todo:
                    watch, runner = runners[variant.key]
                    if before is None or before.key != variant.key:
                        self._caches.empty(runner.roles)
                    self._turn(variant, works, runner, watch)
                    before = variant
            self.display.end()

    def _count(self) -> int:
        """Samples that need not be made any more."""
        turns = (turn for stretch in self.bench.stretches for turn in stretch.turns)
        return sum(len(turn.items) - len(self._todo(turn.variant, turn.items)) for turn in turns)

    def _turn(self, variant: Variant, works: list[Work], runner: Runner, watch: Watch) -> None:
        store, grader = self.stores[variant.folder], self.bench.graders.get(variant.task)
        made = self._made.setdefault(variant.key, Running())
        for record in runner.run(works, watch.servers):
            if grader is not None:
                record = grader.apply(record)
            store.append(record)
            made.add(record)
            watch.record(record)
            self.done += store.done(key(record))
            self.display.sample({**record, "mode": variant.name}, self.done, self.total, made)
            left = self._clock.left(self.done)
            if left and not self.display.err.is_terminal:  # where the bar says it
                self.display.note(left)

    def _todo(self, variant: Variant, items: Sequence[Item]) -> list[Work]:
        store = self.stores[variant.folder]
        works = (Work(question, sample, variant.mode) for question, sample in items)
        return [work for work in works if not store.done(work.key)]

    def _warm_up(self, runners: Runners, todo: Sequence[Variant], question: Question) -> None:
        """One answer of each mode on each set of servers, of which no record is kept and nothing is learnt."""
        warmed = set()
        for variant in todo:
            watch, runner = runners[variant.key]
            if (variant.mode, id(watch)) not in warmed:
                warmed.add((variant.mode, id(watch)))
                work = [Work(Question("warm-up", question.question), 0, variant.mode)]
                warm_up(runner.roles, runner.settings, work, watch)

    def _note_start(self, servers: Sequence[int]) -> None:
        """What was really up when, beside what was planned: a run may have been stopped and taken up again."""
        self.began.append({"servers": [n + 1 for n in servers], "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        write(self.bench, self.began)


def write(bench: Bench, began: Sequence[dict[str, Any]]) -> None:
    """run.json: what was asked for, the order, and when servers were started, also in runs before this one.

    Raises:
        RecordError: it cannot be written.
    """
    path = bench.folder / RUN
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        earlier = []
    earlier = [one for one in earlier if one not in began]
    with writing(path):
        write_whole(path, {**bench.about, "starts": [*earlier, *began]})
