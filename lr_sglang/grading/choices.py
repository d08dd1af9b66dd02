"""Grades questions with lettered choices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lr_sglang.grading import answers
from lr_sglang.grading.grade import Grade, without
from lr_sglang.grading.mathematics import normal
from lr_sglang.tasks.question import Question

_WORDS = re.compile(
    r"^(?:(?:the )?(?:right |correct |final )?(?:answer|choice|option)(?: is)?:?\s*)+",
    re.IGNORECASE,
)
_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[).:,]|\s+[-(]|$)")


def letter(answer: str, choices: Sequence[str]) -> str | None:
    """The letter that an answer names, or whose text it repeats; None if that is no letter, or two
    of them.
    """
    text = _WORDS.sub("", normal(answer.replace("*", "")))
    same = [
        place
        for place, choice in enumerate(choices)
        if normal(choice).casefold() == text.casefold()
    ]
    whole = chr(ord("A") + same[0]) if len(same) == 1 else None
    last, found = chr(ord("A") + max(len(choices), 4) - 1), _LETTER.match(text)
    if found is None or not "A" <= found[1].upper() <= last or (whole and found.end() < len(text)):
        return whole
    again = re.match(r"(?:and|or|,)?\s*\(?([A-Z])\)?$", text[found.end() :].strip())
    return None if again else found[1].upper()


def grade(text: str, question: Question) -> Grade:
    """Whether the letter is the right one."""
    answer = answers.final_answer(text)
    if answer is None or question.answer is None:
        return without(answer, question, "choice")
    chosen = letter(answer[:1000], question.extra.get("choices", ()))
    if chosen is None:
        return Grade(False, answer[:1000], by="choice", reason="no letter of a choice")
    return Grade(chosen == question.answer.strip().upper(), chosen, by="choice")
