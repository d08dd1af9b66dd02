"""Whether two answers to a question of mathematics are the same."""

from __future__ import annotations

import re
from collections.abc import Callable

from lr_sglang.grading import answers, normal
from lr_sglang.grading.grade import Grade, without
from lr_sglang.grading.units import quantity
from lr_sglang.tasks.boxed import boxed
from lr_sglang.tasks.question import Question

LONGEST = 3000  # characters of a final answer; a longer one is none
_SPACED = re.compile(r"\s*,\s+")
Compare = Callable[[str, str], tuple[bool, str]]  # gold and answer: same or not, and why not


def grade(text: str, question: Question, compare: Compare) -> Grade:
    """Grades an answer of mathematics.

    Args:
        compare: Math-Verify in another process (``pool.Pool.compare``).
    """
    answer = answers.final_answer(text)
    if answer is None or question.answer is None:
        return without(answer, question, "text")
    # A gold answer may itself be a worked solution that ends in a box.
    gold = boxed(question.answer) or question.answer
    return same(answer, gold, compare)


def same(answer: str, gold: str, compare: Compare) -> Grade:
    """Compares a final answer with the gold one: here where that is certain, and else by
    Math-Verify.
    """
    if not answer.strip():
        return Grade(False, answer, by="text", reason="the final answer is empty")
    if len(answer) > LONGEST:
        return Grade(False, answer[:LONGEST], by="text", reason=f"longer than {LONGEST} characters")
    ours, theirs = normal.normal(answer), normal.normal(gold)
    # A list of numbers of three digits without spaces looks like thousands.
    if ours == theirs or normal.normal(_SPACED.sub(",", answer)) == normal.normal(
        _SPACED.sub(",", gold)
    ):
        return Grade(True, answer, by="text")
    decided = _here(ours, theirs)
    if decided is None:
        one, other = quantity(ours), quantity(theirs)
        if one and other and one.known and other.known and one.unit != other.unit:
            return Grade(False, answer, by="units", reason=f"{one.unit}, not {other.unit}")
        ours, theirs = one.number if one else ours, other.number if other else theirs
        decided = True if ours == theirs else _here(ours, theirs)
    if decided is not None:
        return Grade(decided, answer, by="number" if normal.number(ours) is not None else "text")
    verdict, reason = compare(theirs, ours)
    return Grade(verdict, answer, by="math-verify", reason=reason)


def _here(ours: str, theirs: str) -> bool | None:
    """Compares answers that need no algebra (whole numbers, words, ratios, times, bases); None for
    all others.
    """
    one, other = normal.number(ours), normal.number(theirs)
    if one is not None and other is not None:
        if one == other:
            return True
        return False if one.denominator == other.denominator == 1 else None
    # 50 % may be asked for as 50, and is 0.5.
    for share, value in ((normal.percent(ours), other), (normal.percent(theirs), one)):
        if share is not None and value is not None and value in (share, share / 100):
            return True
    for form in (normal.words, normal.ratio, normal.base):
        first, second = form(ours), form(theirs)
        if first is not None and second is not None:
            return first == second
    return None
