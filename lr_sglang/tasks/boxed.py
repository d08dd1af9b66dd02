r"""Final answers in ``\boxed{}``: finding the last one, and comparing it with the gold answer.

Answers are compared as normalised text and as numbers, without algebra: ``2x`` and ``x+x`` differ
here (not in ``lr_sglang.grading``). The pocket task is graded by this module.
"""

from __future__ import annotations

import re
from fractions import Fraction

# A box that opens, what is escaped, and plain braces.
_BRACE = re.compile(r"\\(?:f?boxed|fbox)\s{0,100}\{|\\.|[{}]", re.DOTALL)
_LAYOUT = re.compile(r"\\(?:left|right|[,;:! ]|quad|qquad|displaystyle)(?![a-zA-Z])|\\?\$|\s|\{,\}")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]+)\}\{([^{}]+)\}|(\d)(\d))")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?")


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}``, with balanced braces; None if there is
    none.
    """
    found = boxes(text)
    return text[slice(*max(found, key=lambda box: box[1])[1:])].strip() if found else None


def boxes(text: str) -> list[tuple[int, int, int]]:
    """All complete boxes in the order of their ends: where each begins, and its content's span.

    One pass, so that the time is linear even for a text of many unclosed boxes.
    """
    opened: list[tuple[int, int] | None] = []  # for each open brace its box, or None
    found = []
    for match in _BRACE.finditer(text):
        token = match[0]
        if token.startswith("\\") and token.endswith("{") and len(token) > 2:
            opened.append(match.span())
        elif token == "{":
            opened.append(None)
        elif token == "}" and opened and (box := opened.pop()) is not None:
            found.append((*box, match.start()))
    return found


def same_answer(answer: str, gold: str) -> bool:
    r"""Whether two answers agree: the same normalised text, or the same number (``0.5`` is
    ``\frac12``).
    """
    first, second = normal(answer), normal(gold)
    if first == second:
        return first != ""
    one, other = number(first), number(second)
    return one is not None and one == other


def correct(answer: str | None, gold: str | None) -> bool | None:
    """Whether the answer is right; None if no gold answer is known, False if there is no answer."""
    if gold is None:
        return None
    # A gold answer may itself be a worked solution that ends in a box.
    return answer is not None and same_answer(answer, boxed(gold) or gold)


def normal(text: str) -> str:
    """The answer without parts that do not change its meaning: spaces, dollar signs, layout,
    percent signs.
    """
    text = _WRAPPED.sub(r"\1", text)
    text = _LAYOUT.sub("", _BETWEEN_DIGITS.sub("_", text))  # "1 2" is not "12"
    text = _FRACTION.sub(lambda m: f"{m[1] or m[3]}/{m[2] or m[4]}", text)
    text = text.replace("\\%", "").replace("%", "").replace("^{\\circ}", "").replace("^\\circ", "")
    text = _THOUSANDS.sub("", text).rstrip(".").replace("−", "-")
    return text.casefold()


def number(text: str) -> Fraction | None:
    """The value of a normalised answer that is a plain number or a quotient of two."""
    if not _NUMBER.fullmatch(text) or len(text) > 1000:
        return None
    above, _, below = text.partition("/")
    if below and not int(below):
        return None
    return Fraction(above) / (int(below) if below else 1)
