"""Carrying out what a command asks for: runtimes up, samples made, records kept, runtimes down."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.api.configuration import Plan
from lr_sglang.cli import capacity, grading_options
from lr_sglang.cli import session as sessions
from lr_sglang.cli.display import Display
from lr_sglang.errors import LookaheadError
from lr_sglang.grading import Grader
from lr_sglang.results import machine
from lr_sglang.results.record import Record
from lr_sglang.results.store import Store
from lr_sglang.results.summary import Running
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import Work, plan

if TYPE_CHECKING:
    from lr_sglang.api.runner import Settings

SIMULATED = "these runtimes are simulated: the figures say nothing of models"


@dataclass(frozen=True)
class SampleRun:
    """What is to be done.

    Attributes:
        asked: where the questions come from and what is appended to them; part of the configuration.
        warm_up: samples that are made first, and not recorded.
        grader: of the answers, as they come; by default the last box is compared with the gold answer.
    """

    plan: Plan
    questions: Sequence[Question]
    modes: Sequence[str]
    asked: dict[str, Any]
    samples: int = 1
    concurrency: int = 1
    launch_timeout: float = 600.0
    warm_up: Sequence[Work] = ()
    versions: dict[str, str] = field(default_factory=machine.versions)
    grader: Grader | None = None

    @cached_property
    def work(self) -> list[Work]:
        """The samples, in order."""
        return plan(self.questions, self.modes, self.samples)


def open_store(folder: Path, order: SampleRun, *, resume: bool = False) -> Store:
    """The folder for the order's records.

    Raises:
        RecordError: as ``Store``.
    """
    config = {mode: order.plan.config(mode, **order.asked) for mode in order.modes}
    about = about_run(order.plan, order.samples, order.concurrency, order.versions, machine.machine())
    return Store(folder, config, about, resume=resume)


def about_run(
    plan: Plan, samples: int, concurrency: int, versions: Mapping[str, str], here: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json says of how the records of a folder were made."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "samples": samples,
        "concurrency": concurrency,
        "placement": plan.placement(),
        "versions": versions,
        "machine": here,
    }


def carry_out(order: SampleRun, store: Store, display: Display) -> list[Record]:
    """Makes the samples that have no record yet, and shows the result.

    Raises:
        LookaheadError: nothing could be answered, or nothing graded; the records that there are stay.
        KeyboardInterrupt: the user wants no more; the records that there are stay.
    """
    records = make_all(order, store, display)
    if len(records) == 1:
        display.single(records[0], store.path)
    else:
        display.many(records, store.path)
    need_an_answer(records)
    grading_options.tell_failures(records, display, store.folder)
    return records


def make_all(order: SampleRun, store: Store, display: Display) -> list[Record]:
    """Makes the samples that have no record yet; returns the records of all.

    Raises:
        LookaheadError, KeyboardInterrupt: as ``carry_out``.
    """
    with resumable(lambda: sum(store.done(item.key) for item in order.work), len(order.work), store.folder, display):
        _make(order, [item for item in order.work if not store.done(item.key)], store, display)
    return [store.records[item.key] for item in order.work]


@contextmanager
def resumable(done: Callable[[], int], total: int, folder: Path, display: Display) -> Iterator[None]:
    """While samples are made: says how many there are already, and how to go on when they are interrupted."""
    if before := done():
        display.note(f"{before} of {total} samples are done already")
    try:
        yield
    except (KeyboardInterrupt, LookaheadError):
        if kept := done():
            again = f"the same options with --resume --output {folder} go on from there"
            display.warn(f"{kept} of {total} samples are kept; {again}")
        raise


def need_an_answer(records: Sequence[Record]) -> None:
    """Raises the error of the last record if all of them have one."""
    if records and all(record["error"] for record in records):
        error = records[-1]["error"]
        raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])


def settings_of(
    plan: Plan, modes: Sequence[str], asked: Mapping[str, Any], versions: Mapping[str, str], live: sessions.Session
) -> Settings:
    """What the samples of these modes have in common."""
    from lr_sglang.api.runner import Settings

    caches = ", ".join(dict.fromkeys(backend.prefix_cache for backend in live.roles.values()))
    return Settings(
        lookahead=plan.lookahead,
        sampling=plan.sampling,
        limits=plan.limits,
        judge_prompt=plan.judge_prompt,
        program=plan.program,
        suffix=asked["prompt_suffix"],
        config={mode: plan.config(mode, **asked) for mode in modes},
        versions={**versions, **({"runtimes": "simulated"} if live.simulated else {"prefix_cache": caches})},
    )


def warn_of_judge(live: sessions.Session, display: Display) -> None:
    """That a judge is not trusted is said like any other warning."""
    if "judge" in live.roles:
        live.roles["judge"].checks.warn = display.warn


def warm_up(roles: Mapping[str, Any], settings: Settings, work: Sequence[Work], watch: Watch) -> None:
    """Makes samples of which no record is kept, and from which nothing is learnt."""
    from lr_sglang.api.runner import Runner

    with Runner(roles, settings) as runner:
        for _ in runner.run(work, watch.servers):
            pass


def _make(order: SampleRun, todo: list[Work], store: Store, display: Display) -> None:
    """One set of servers after the other: modes that share them are made side by side, question by question."""
    for modes in order.plan.server_sets(order.modes):
        part = [item for item in todo if item.mode in modes]
        if part:
            _make_set(order, modes, part, store, display)


def _make_set(order: SampleRun, modes: list[str], todo: list[Work], store: Store, display: Display) -> None:
    logs, needed = store.folder / "logs", order.plan.needed(modes, order.concurrency)
    with (
        display.starting() as progress,
        sessions.session(needed, logs, progress, order.launch_timeout, lean=order.plan.lean()) as live,
    ):
        progress.finish()
        from lr_sglang.api.runner import Runner

        if live.simulated:
            display.warn(SIMULATED)
        capacity.report(order.plan, modes, live, order.concurrency, display)
        warn_of_judge(live, display)
        settings = settings_of(order.plan, modes, order.asked, order.versions, live)
        watch = Watch(live, display)
        if first := [item for item in order.warm_up if item.mode in modes]:
            warm_up(live.roles, settings, first, watch)
        single = len(order.work) == 1
        if single:
            settings = dataclasses.replace(settings, on_step=lambda item, step: display.step(step))
        before = [store.records[item.key] for item in order.work if store.done(item.key)]
        done, so_far = len(before), Running(before)
        if not single:
            display.begin(len(order.work), done)
        try:
            with Runner(live.roles, settings, order.concurrency) as runner:
                for record in runner.run(todo, watch.servers):
                    if order.grader is not None:
                        record = order.grader.apply(record)
                    store.append(record)
                    watch.record(record)
                    done += 1
                    so_far.add(record)
                    if not single:
                        display.sample(record, done, len(order.work), so_far)
        finally:
            display.end()
            watch.servers()


class Watch:
    """Says once what has gone wrong with draft or judge, while the answers go on without them."""

    def __init__(self, live: sessions.Session, display: Display) -> None:
        self.live, self.display = live, display
        self.told: set[str] = set()

    def servers(self) -> None:
        """Looks for servers that have ended."""
        for role in self.live.newly_dead():
            if role != "target":
                self.told.add(role)
                self.display.warn(f"{role}: its server has ended; answers go on without it, slower but no worse")

    def record(self, record: Record) -> None:
        """Looks for failures that a sample survived."""
        self.servers()
        for role in record["failures"].keys() - self.told:
            self.told.add(role)
            errors = [b["error"] for b in record["branches"] if b["role"] == role and b["error"]]
            why = f" ({errors[-1]})" if errors else ""
            self.display.warn(f"{role}: it failed{why}; answers go on without it where need be, slower but no worse")
