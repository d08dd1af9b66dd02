"""Grades questions with lettered choices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lr_sglang.grading import answers
from lr_sglang.grading.grade import Grade, grade_without_answer
from lr_sglang.grading.mathematics import in_latex
from lr_sglang.tasks.question import Question

SEARCHED_STATEMENTS = 100  # statements at the end, in which a letter is searched
_WORDS = re.compile(
    r"^(?:(?:the )?(?:right |correct |final |best )?(?:answer|choice|option)"
    r"(?: is)?:?\s*)+",
    re.IGNORECASE,
)
# What follows a letter that stands for a choice: nothing, its text, or a reason. "A" alone may be
# an article.
_LETTER = re.compile(
    r"\(?([A-Za-z])\)?(?:[).:,;]|\s+[-(=]|$|\s+(?:is|because|since|as|due|given|which|by|from|based)\b"
    r"|(?<=[B-HJ])\s+(?=[a-z])(?!and\b|or\b|nor\b|not\b))"
)
_ENDS = re.compile(r"^[$\s]+|[^\w)\]}.]+$")
_MORE = re.compile(r"(?:and|or|nor|/|&|,)?\s*\(?([A-Z])\)?(?:$|\s*(?:[,/&]|and\b|or\b))")
_LAST_LINE = re.compile(r"(?:^|\n)[ \t>*_#$]*+\(?([A-J])\)?[.*_$ \t]*+\s*+$")
_CORRECT = re.compile(
    r"(?:\b(?:option|choice|answer)\s+\(?([A-J])\)?|\(([A-J])\))\s+is\s+(?:the\s+)?(?:correct|right|best|answer)\b"
    r"|\b(?:choice|option)\s+(?:is|:)\s+([^\n]{1,300})",
    re.IGNORECASE,
)


def letter(answer: str, choices: Sequence[str]) -> str | None:
    """The letter that an answer names, or whose text it repeats; None if that is no letter, or two
    of them.
    """
    found = letters(answer, choices)
    return found if len(found) == 1 else None


def letters(answer: str, choices: Sequence[str]) -> str:
    """The letters that an answer names; empty if there is none."""
    text = _WORDS.sub("", in_latex(_ENDS.sub("", answer.replace("*", ""))))
    same = [
        place
        for place, choice in enumerate(choices)
        if in_latex(choice).casefold() == text.casefold()
    ]
    whole = chr(ord("A") + same[0]) if len(same) == 1 else ""
    last = chr(ord("A") + max(len(choices), 4) - 1)
    found = _LETTER.match(text)
    if found is None or not "A" <= found[1].upper() <= last or (whole and found.end() < len(text)):
        return whole
    again = _MORE.match(text[found.end() :].strip())
    return found[1].upper() + (again[1] if again else "")


def grade_choice(text: str, question: Question) -> Grade:
    """Whether the last letter that is stated as the answer is the right one."""
    stated = answers.statements(text, _CORRECT, _LAST_LINE)
    if not stated or question.answer is None:
        return grade_without_answer(None, question, "choice")
    choices = question.extra.get("choices", ())
    named = (letters(said[:1000], choices) for said in reversed(stated[-SEARCHED_STATEMENTS:]))
    last = next(filter(None, named), "")
    if len(last) != 1:
        return Grade(False, stated[-1][:1000], by="choice", reason="no letter of a choice")
    right = letter(question.answer, choices) or question.answer.strip().upper()
    return Grade(last == right, last, by="choice")
