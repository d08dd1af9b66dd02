"""Measures the options of docs/policies.md on the virtual clock, and prints a table for each: no
model, no server.

python -m benchmarks.policies                 # all of them, a minute or two
python -m benchmarks.policies gate adaptive
python -m benchmarks.policies adaptive --full # the whole grid: five minutes on two cores
python -m benchmarks.policies adaptive --full --load 64 --load 128
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import click

from lr_sglang import verifiers
from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.inquiry import Inquiry, Verifier
from lr_sglang.algorithm.policy import forecast
from lr_sglang.api.runner import keep_what_is_imported
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.slots import Slots
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.step import Verdict
from lr_sglang.steps.trace import Trace
from lr_sglang.steps.tree import Node
from lr_sglang.tasks import Question
from lr_sglang.tasks.task import messages
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import alone, numbers, questions

T = TypeVar("T")
STEP, TOKENS = 0.2, 9  # seconds of a target step alone, and its tokens


@lru_cache(maxsize=1)
def writer_of(model: Model) -> Writer:
    """The writer of a model, the same for cases that differ in their times only, because it caches
    its texts.
    """
    return Writer(model)


class Conditions:
    """A fixed set of simultaneous questions, for which the same drafts are accepted under all
    settings.

    Args:
        judge: time of a verdict over that of a target step.
    """

    def __init__(
        self,
        alpha: float,
        c1: float,
        count: int = 1,
        steps: int = 300,
        judge: float = 0.05,
        slowdown: float = 0.0,
        slots: int | None = None,
        **model: Any,
    ) -> None:
        known = Model(alpha=(alpha,), steps=steps, tokens=TOKENS, **model)
        self.simulation = Simulation(known, STEP, c1, judge * STEP, slowdown, slots)
        self.writer, self.asked, self.steps = writer_of(known), questions(count), steps
        self.plain = (
            sum(alone(self.simulation, numbers(self.writer, self.asked), self.writer)) / count
        )

    def run(self, told: bool = False, share: float = 1.0, **look: Any) -> tuple[float, float]:
        """Speed-up over plain decoding, and target branches per step.

        Args:
            told: as in ``measured``.
            share: the part of the steps after which answers end.
        """
        steps = round(share * self.steps)
        limits = Limits(max_tokens=steps * TOKENS)
        answers = measured(
            self.simulation, Lookahead(**look), self.asked, self.writer, told=told, limits=limits
        )
        seconds = sum(answer.seconds for answer in answers) / len(answers)
        branches = sum(len(a.of("target")) for a in answers) / len(answers)
        return self.plain * steps / self.steps / seconds, branches / steps


@dataclass(eq=False)
class SameDrafts(AnswerRequest):
    """A request whose drafts depend on their position and number only, so that all settings get the
    same drafts.
    """

    def draws(self, role: str, node: Node, alternative: int = 0) -> tuple[int, int]:
        return alternative, 0


class Told:
    """Gives the simulated verdicts directly, after the judge's time, which saves rendering and
    encoding its prompts.
    """

    name = "told"

    def __init__(self, simulation: Simulation, writer: Writer) -> None:
        self._judge, self._numbers = (
            SimulatedRuntime("judge", simulation, writer),
            itertools.count(),
        )

    async def verify(self, inquiry: Inquiry) -> Verdict:
        """As ``Verifier.verify``."""
        writer = self._judge.writer
        head = writer.words.read(inquiry.pair.draft.ids)
        await self._judge.serve(self._judge.simulation.judge_seconds, str(next(self._numbers)))
        return Verdict(head is not None and writer.model.agrees(*head[:3]), self.name)


def own_slots(roles: Mapping[str, RuntimeBackend], slots: int) -> dict[str, RuntimeBackend]:
    """The same runtimes, with slots for one answer alone."""
    mine = {role: copy(backend) for role, backend in roles.items()}
    for backend in mine.values():
        backend.roles, backend.slots = mine, Slots(slots)
    return mine


def measured(
    simulation: Simulation,
    look: Lookahead,
    asked: Sequence[Question],
    writer: Writer,
    *,
    each: int | None = None,
    told: bool = False,
    limits: Limits | None = None,
) -> list[Trace]:
    """As ``answer_all``, but with the same accepted drafts under all settings.

    Args:
        each: slots on every runtime reserved for each answer; None: all answers share the slots.
        told: whether verdicts are ``Told``, in the same time, in place of the judge's.

    Returns:
        The traces; their ``seconds`` are those of the virtual clock, until the last step was kept.
    """

    async def answer() -> list[Trace]:
        roles = simulated_roles(simulation, writer)
        sampling, experience = Sampling(seed=simulation.model.seed), policy.RunStatistics()
        by: Verifier | None = Told(simulation, writer) if told else None
        shares = [roles if each is None else own_slots(roles, each) for _ in asked]
        requests = [
            SameDrafts(
                look,
                sampling,
                limits or Limits(),
                verifier=by
                or verifiers.make_verifier(look.verifier, verifiers.Setup(mine, "paper")),
                question=one.id,
                experience=experience,
            )
            for one, mine in zip(asked, shares, strict=True)
        ]
        programs = (
            run_program(lookahead, messages(one.question), request, backend=mine["target"])
            for one, request, mine in zip(asked, requests, shares, strict=True)
        )
        await asyncio.gather(*programs)
        return [request.trace for request in requests]

    return run_virtually(answer())


Row = tuple[Any, ...]


def gate(full: bool) -> tuple[Row, Iterator[Row]]:
    """Confidence gating: target branches per step and speed, over those without, at an
    AUC of 0.8.
    """

    def rows() -> Iterator[Row]:
        for alpha, judge, auc in (
            (0.46, 0.1, 0.8),
            (0.62, 0.0, 0.8),
            (0.62, 0.2, 0.8),
            (0.75, 0.1, 0.8),
            (0.62, 0.1, 0.5),
        ):
            scene = Conditions(alpha, 0.1, count=6 if full else 3, steps=600, judge=judge, auc=auc)
            speed, branches = scene.run()
            for least in (0.05, 0.075, 0.15):
                gated = scene.run(gate=least)
                faster, fewer = f"{gated[0] / speed:.3f}", f"{gated[1] / branches:.3f}"
                yield alpha, judge, auc, least, f"{branches:.2f}", f"{gated[1]:.2f}", fewer, faster

    return ("alpha", "judge", "AUC", "gate", "branches", "gated", "ratio", "speed"), rows()


Shape = tuple[int, int]  # depth and width
# The depths and widths that the adaptive policy is compared with; much larger ones take long and
# are never best.
FIXED = ((2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (12, 1), (2, 2), (3, 2), (5, 2), (2, 3), (3, 3))
MAX_AT_ONCE = 64
NEAR, CLOSE = 0.97, 0.98  # see ``search``
LENGTHS = {
    1: 120,
    2: 64,
    4: 48,
    8: 32,
    16: 24,
    32: 16,
    64: 12,
    128: 12,
}  # benchmarks/adaptive_check.py
ALPHAS, C1S = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (0.05, 0.1, 0.2, 0.4)
SLOWDOWN = 0.02  # by which each further request slows the others down: throughput saturates at 50


@dataclass(frozen=True)
class Adapted:
    """The adaptive policy's speed-up over plain decoding, the best fixed depth and width, and the
    speed-up of these.
    """

    depth: int
    width: int
    fixed: float
    found: float
    branches: float

    @property
    def good(self) -> bool:
        """Whether the policy meets its requirement."""
        return self.found >= 0.95 * self.fixed and self.found >= 0.98


def predicted(scene: Conditions, shape: Shape) -> float:
    """The speed-up that the closed form of ``algorithm.policy.forecast`` expects of a depth and a
    width.
    """
    known, count, model = scene.simulation, len(scene.asked), scene.simulation.model
    target, draft = (
        forecast.StepTimes(s * (1 - known.slowdown), s * known.slowdown)
        for s in (STEP, STEP * known.c1)
    )
    measured = forecast.Conditions(
        "async", *2 * model.alpha, target, draft, known.judge_seconds, count
    )
    return forecast.forecast(measured, *shape) * target.alone(count) if shape[0] else 1.0


def search(scene: Conditions, fixed: Sequence[Shape] = FIXED) -> dict[Shape, float]:
    """The speed-ups of those fixed choices that can be the best; (0, 1) is plain decoding.

    Choices are tried on half of every answer, best expectation of the closed form first: those
    expected to reach ``NEAR`` times the best measured one, and its neighbours (one depth more and
    one less). The best choice and all that reach ``CLOSE`` times its speed-up are then tried on
    whole answers.
    """
    load, half = len(scene.asked), {(0, 1): 1.0}
    shapes = [(d, w) for d, w in fixed if w == 1 or load * w ** (d - 1) <= MAX_AT_ONCE]
    expected = {shape: predicted(scene, shape) for shape in shapes}
    while True:
        best = max(half, key=half.__getitem__)
        depths = [0] * (best[1] == 1) + [depth for depth, width in shapes if width == best[1]]
        at = depths.index(best[0])
        beside = {(depth, best[1]) for depth in depths[max(0, at - 1) : at + 2]}
        left = [
            s for s in shapes if s not in half and (s in beside or expected[s] >= NEAR * half[best])
        ]
        if not left:
            break
        depth, width = shape = max(left, key=expected.__getitem__)
        half[shape] = scene.run(told=True, share=0.5, depth=depth, width=width)[0]
    last = [shape for shape in half if shape[0] and half[shape] >= CLOSE * half[best]]
    return {(0, 1): 1.0} | {(d, w): scene.run(told=True, depth=d, width=w)[0] for d, w in last}


def adapt(
    load: int,
    alpha: float,
    c1: float,
    fixed: Sequence[Shape] = FIXED,
    steps: int | None = None,
    seed: int = 0,
) -> Adapted:
    """One case of the grid: ``load`` questions at once, beside the best of some fixed depths and
    widths.
    """
    scene = Conditions(
        alpha, c1, load, steps or LENGTHS[load], slowdown=SLOWDOWN, width=3, seed=seed
    )
    found = search(scene, fixed)
    best = max(found, key=found.__getitem__)
    return Adapted(*best, found[best], *scene.run(told=True, policy="adaptive", depth=12, width=3))


def at_once(
    work: Callable[..., T], cases: Iterable[tuple[Any, ...]], chunk: int = 1
) -> Iterator[T]:
    """Maps a function over the cases, in order, on all cores."""
    copied = multiprocessing.get_context("fork")  # keeps the imports; safe, as no thread runs here
    with ProcessPoolExecutor(
        os.cpu_count(), copied, gc.disable
    ) as pool:  # answers leave no garbage
        yield from pool.map(work, *zip(*cases, strict=True), chunksize=chunk)


def adaptive(full: bool, only: Sequence[int] = ()) -> tuple[Row, Iterator[Row]]:
    """The adaptive policy over the best fixed depth and width (or none) of each case, and over
    plain decoding.
    """
    loads = tuple(only) or (tuple(LENGTHS) if full else (1, 16))

    def rows() -> Iterator[Row]:
        made = []
        cases = list(
            itertools.product(
                loads, ALPHAS if full else (0.2, 0.6, 0.9), C1S if full else (0.05, 0.4)
            )
        )
        for case, one in zip(cases, at_once(adapt, cases, len(C1S)), strict=True):
            made.append(one)
            ratio = f"{one.found / one.fixed:.3f}", f"{one.found:.3f}"
            yield (
                *case,
                f"{one.depth} x {one.width}",
                f"{one.fixed:.3f}x",
                *ratio,
                f"{one.branches:.2f}",
            )
        least = (
            f"{min(one.found / one.fixed for one in made):.3f}",
            f"{min(one.found for one in made):.3f}",
        )
        yield (
            "least",
            f"{sum(one.good for one in made)} of {len(made)} good",
            "",
            "",
            "",
            *least,
            "",
        )

    head = (
        "load",
        "alpha",
        "c1",
        "best fixed",
        "its speed-up",
        "adaptive / best",
        "adaptive / plain",
        "branches",
    )
    return head, rows()


@dataclass(frozen=True)
class Shared:
    """Answers that share the slots of their runtimes.

    Attributes:
        seconds: the mean; ``slowest`` is the time of the last answer over the mean.
        split: the mean, by number of slots reserved for each answer.
    """

    seconds: float
    slowest: float
    split: dict[int, float]


def share(
    count: int, slots: int = 16, steps: int = 80, tried: Sequence[int] = (1, 2, 3, 4, 6, 8)
) -> Shared:
    """Measures ``count`` answers at once, with the same accepted drafts, so that no answer is
    faster by chance.
    """
    draw = random.Random(1)
    agree = tuple(draw.random() < 0.63 for _ in range(steps))
    scene, look = (
        Conditions(0.63, 0.1, count, steps=steps, slots=slots, trace=(agree,)),
        Lookahead(),
    )

    def seconds(each: int | None = None) -> list[float]:
        made = measured(scene.simulation, look, scene.asked, scene.writer, each=each)
        return [answer.seconds for answer in made]

    shared = seconds()
    mean = sum(shared) / count
    split = {each: sum(seconds(each)) / count for each in sorted({*tried, max(1, slots // count)})}
    return Shared(mean, max(shared) / mean, split)


def slots(full: bool) -> tuple[Row, Iterator[Row]]:
    """Slots that all answers share, against the best tried number of slots reserved for each
    answer.
    """

    def rows() -> Iterator[Row]:
        for count in (1, 2, 4, 8, 16, 32):
            made = share(count, steps=300 if full else 80)
            best = min(made.split, key=made.split.__getitem__)
            shares = f"{made.split[best] / made.seconds:.3f}", f"{made.slowest:.3f}"
            yield count, f"{made.seconds:.2f} s", best, f"{made.split[best]:.2f} s", *shares

    return (
        "answers",
        "shared",
        "best of one's own",
        "with them",
        "that / shared",
        "slowest / mean",
    ), rows()


MEASURED: dict[str, Callable[..., tuple[Row, Iterator[Row]]]] = {
    "gate": gate,
    "adaptive": adaptive,
    "slots": slots,
}


def show(row: Sequence[Any]) -> None:
    """A row of a markdown table."""
    click.echo("| " + " | ".join(str(cell) for cell in row) + " |")


def main() -> None:
    """Prints the tables that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", choices=[*MEASURED, []], help="one or more; all of them if none is given"
    )
    parser.add_argument("--full", action="store_true", help="more cases, longer answers")
    parser.add_argument(
        "--load", type=int, action="append", choices=LENGTHS, help="of the adaptive policy's cases"
    )
    given = parser.parse_args()
    keep_what_is_imported()  # as run and serve do
    for name in given.what or MEASURED:
        more = {"only": given.load} if name == "adaptive" and given.load else {}
        began, (head, rows) = time.monotonic(), MEASURED[name](given.full, **more)
        click.echo(f"\n## {MEASURED[name].__doc__}\n")
        show(head)
        show(["-"] * len(head))
        for row in rows:
            show(row)
        click.echo(
            f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
