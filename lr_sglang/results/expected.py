"""The speed-up that the formulas expect of a run, from its measured alpha, c1 and verdicts, term by
term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lr_sglang.errors import ConfigError
from lr_sglang.results.brief import Brief
from lr_sglang.results.collection import Collection
from lr_sglang.results.groups import Group, program
from lr_sglang.theory.judged import MAX_STEPS
from lr_sglang.theory.measured import AHEAD, Answer, Measured, measure, without
from lr_sglang.theory.planner import Case


@dataclass(frozen=True)
class Expected:
    """Speed-ups in tokens per second; from ``paper`` to ``slowdown``, each takes one more effect
    into account.

    Attributes:
        paper: S1 or S2 (async), f_sync: steps of equal cost, verdicts without cost, endless
            answers.
        judge: with the measured time of verdicts.
        ends: with the measured length of answers.
        slowdown: with the measured slowdown of parallel target steps; everything that the formulas
            include.
        alpha, c1, verdict, steps, slower: the measured inputs; the time of a verdict is in target
            steps.
        measured: the real speed-up; no formula has the rest (uneven steps, late drafts, prefill,
            queueing, controller).
    """

    paper: float
    judge: float
    ends: float
    slowdown: float | None
    measured: float | None
    alpha: float
    c1: float
    verdict: float
    steps: int
    slower: float | None


def expected(collection: Collection, group: Group) -> Expected | None:
    """The expectation for a lookahead group; None if its records do not suffice, or drafting is no
    faster.

    The formulas hold for one answer at one depth, and not for programs that make several
    generations.
    """
    answers = [row.answer for row in group.rows if row.answer]
    if group.mode not in AHEAD or not all(map(_at_one_depth, answers)) or program(group):
        return None
    base = collection.base(group, without(answers))  # with the same token layer, if any
    found = _measured(
        [*answers, *(row.answer for row in (base.rows if base else ()) if row.answer)], group.mode
    )
    if found is None:
        return None
    alpha, c1, judge, steps, slower = (
        found.alpha,
        found.c1,
        found.judge,
        min(found.steps, MAX_STEPS),
        found.slowdown,
    )

    def gains(case: Case) -> float:
        return case.speedup(found.schedule, found.depth)

    paper, judged = gains(Case(alpha, c1)), gains(Case(alpha, c1, judge))
    ends = gains(Case(alpha, c1, judge, steps=steps))
    slowdown = gains(_case(found)) if slower else None
    return Expected(paper, judged, ends, slowdown, found.speedup, alpha, c1, judge, steps, slower)


def of_mode(records: Sequence[Brief], mode: str, length: float | None) -> float | None:
    """The speed-up over plain decoding that ``lr-sglang plan --records`` computes for one mode of a
    run.

    Args:
        records: of the run.
        length: acceptance length of the target's token layer, whose cost is taken as 0; None
            without one.
    """
    if mode not in AHEAD:
        return length
    answers = [record.answer for record in records if record.answer]
    if not all(_at_one_depth(answer) for answer in answers if answer.mode == mode):
        return None
    found = _measured(answers, mode)
    if found is None:
        return None
    return _case(found).speedup(found.schedule, found.depth) * (length or 1.0)


def _case(found: Measured) -> Case:
    """The case with all measured inputs."""
    return Case(
        found.alpha, found.c1, found.judge, found.slowdown or 1.0, steps=min(found.steps, MAX_STEPS)
    )


def _at_one_depth(answer: Answer) -> bool:
    return answer.lookahead is not None and answer.lookahead.policy != "adaptive"


def _measured(answers: Sequence[Answer], mode: str) -> Measured | None:
    """The inputs of the formulas; None if the records do not suffice, or drafting is no faster."""
    try:
        found = measure(answers, mode)
    except (ConfigError, ZeroDivisionError):
        return None
    return found if found.c1 < 1 else None
