"""Whether two answers to a question of mathematics are the same; units of measure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from lr_sglang.grading import answers, normal
from lr_sglang.grading.grade import Grade, without
from lr_sglang.tasks.boxed import boxed
from lr_sglang.tasks.question import Question

# The first word of each part is our name of the unit.
_SAME = r"""
mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre
in inch inche; ft foot feet; yd yard; mi mile
mg milligram; g gram; kg kilogram kilo; oz ounce; lb lbs pound
s sec second; ms millisecond; min minute; h hr hour; day; week; month; year yr
ml milliliter millilitre; l liter litre; gal gallon
mph; kmh km/h kph; m/s; m/s^2
hz hertz; n newton; j joule; w watt; v volt; pa pascal
dollar usd; euro eur; cent
degree deg ^\circ; °c; °f; radian rad
"""
_FUNCTIONS = "(?:a|arc)?(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt)h?"
UNITS = {
    word: same.split()[0] for same in re.split("[;\n]", _SAME.strip()) for word in same.split()
}
_QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:\d[\d.,]*|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\.\d+)(?:/\d+)?(?:\s*\\pi|\s*\\sqrt\s*\{[^{}]*\})?)"
    r"\s*(?P<unit>[a-zA-Z°][a-zA-Z°/^{}\d .²³-]*)"
)


class Quantity(NamedTuple):
    """A number and its unit; the unit has our name if we know it (``known``)."""

    number: str
    unit: str
    known: bool


def quantity(text: str) -> Quantity | None:
    """Parses a number with words after it; None for anything else (``2x`` and ``3 n`` are not
    quantities).
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    word = found["unit"].strip().rstrip(".").strip()
    name = canonical(word)
    if name is not None:
        # One letter directly after the number may be a variable.
        glued = len(word) == 1 and found["unit"] == text[found.end("number") :]
        return None if glued else Quantity(found["number"], name, True)
    words = re.fullmatch(rf"(?!{_FUNCTIONS}\b)[a-zA-Z]{{3,}}(?:[ -][a-zA-Z]+){{0,3}}", word)
    return Quantity(found["number"], word.casefold(), False) if words else None


def canonical(word: str) -> str | None:
    """Our name of a unit: ``centimetres`` is ``cm``."""
    word = " ".join(word.casefold().split()).rstrip(".")
    return UNITS.get(word) or UNITS.get(word.removesuffix("s"))


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
