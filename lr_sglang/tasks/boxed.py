r"""Final answers in ``\boxed{}``: finding the last one, and comparing it with the gold answer.

The comparison is by normalised text and by number. It knows no algebra: ``2x`` and ``x+x`` differ here
(``lr_sglang.grading`` knows some). It is what the pocket task is graded by.
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
    r"""What stands in the last whole ``\boxed{...}``, braces balanced; None where there is none.

    One pass: a text of nothing but opened boxes takes no longer than another.
    """
    opened: list[int | None] = []  # for each open brace, where its box begins, if it is one's
    last: tuple[int, int] | None = None
    for match in _BRACE.finditer(text):
        token = match[0]
        if token.startswith("\\") and token.endswith("{") and len(token) > 2:
            opened.append(match.end())
        elif token == "{":
            opened.append(None)
        elif token == "}" and opened:
            begins = opened.pop()
            if begins is not None and (last is None or begins > last[0]):
                last = begins, match.start()
    return None if last is None else text[slice(*last)].strip()


def same(answer: str, gold: str) -> bool:
    r"""Whether two answers agree: the same normalised text, or the same number (``0.5`` is ``\frac12``)."""
    first, second = normal(answer), normal(gold)
    if first == second:
        return first != ""
    one, other = number(first), number(second)
    return one is not None and one == other


def correct(answer: str | None, gold: str | None) -> bool | None:
    """Whether the answer is right: None where no gold answer is known, False where there is no answer."""
    if gold is None:
        return None
    # A gold answer may itself be a worked solution that ends in a box.
    return answer is not None and same(answer, boxed(gold) or gold)


def normal(text: str) -> str:
    """The answer without what does not change its meaning: spaces, dollar signs, layout, units of per cent."""
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
