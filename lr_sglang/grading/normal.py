r"""Rules that bring a final answer into a form that Math-Verify reads as a person would.
docs/tasks.md lists them.

Each is for a notation that Math-Verify alone misreads: ``10\,000`` as 10 times 0, ``1.2e3`` with
Euler's number, ``3 1/2`` as 2. All are applied to both sides.
"""

from __future__ import annotations

import re
from fractions import Fraction

from lr_sglang.tasks import boxed

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-",
        "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ",
        "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "±": r"\pm ", "％": "%", "，": ",",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "²": "^{2}", "³": "^{3}", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "\u200b": "", "\ufeff": "",
    }
)  # fmt: skip
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|large|Large|LARGE|huge|Huge|small|normalsize|bigl?|bigr|Bigl?|Bigr)"
    r"(?![a-zA-Z])\.?"
)
_SPACE = re.compile(r"(?<!\\)\\(?:[,;:! ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~|\\\n")
_THIN_GROUPS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|,\\!|\\!,|~)+(?=\d{3}(?!\d))")
_GROUPS = re.compile(r"([-+]?\d{1,3})((?:[, ]\d{3})+)(\.\d+)?")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf)|boldsymbol|bm|mbox|operatorname\*?)\s*\{([^{}]*)\}"
)
_WHOLE_BRACES = re.compile(r"\{([^{}]*)\}")
_CURRENCY = re.compile(
    r"^([-+]?)\s*(?:\\\$|\$|€|£|¥|\\pounds|\\euro)\s*(?=[\d.])|(?<=\d)\s*(?:€|£|¥|\\\$)$"
)
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d{1,6})")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(?:and\s+)?(\d+)/(\d+)")
_PERCENT = re.compile(r"\s*(?:\\%|%|\bper ?cent\b)$")
_DEGREE = r"(?:\^\s*(?:\{\s*)?(?:\\circ|\\degree|∘)\s*\}?|\\degree|°)"
_SCALE = re.compile(_DEGREE + r"\s*([CF])$")
_DEGREES = re.compile(_DEGREE + r"(?!\s*[CF]$)|(?<=\d)\s*degrees?\b")
_EMPTY = re.compile(r"\\varnothing|\\\{\s*\\\}")
_COLON = re.compile(r"\s*(?:\{:\}|\\colon|:)\s*")
_FRACTION = re.compile(r"([-+]?)\\[dtc]?frac\{(-?\d+)\}\{(-?\d+)\}|([-+]?)\\[dtc]?frac(\d)(\d)")


def normal(text: str) -> str:
    """The answer in a form that Math-Verify reads; see the module."""
    text = text.translate(_SIGNS).strip()
    text = _THIN_GROUPS.sub("", text)
    text = _LAYOUT.sub("", text)
    for _ in range(3):  # nested ones
        text = _WRAPPED.sub(r" \1 ", text)
    text = _SPACE.sub(" ", text)
    text = text.replace("\\(", "").replace("\\)", "").replace("\\[", "").replace("\\]", "")
    text = " ".join(text.split())
    if text.startswith("$") and text.endswith("$") and len(text) > 1:
        text = text.strip("$").strip()
    text = re.sub(r"(?<!\\)[.,;]$", "", text).strip()
    while whole := _WHOLE_BRACES.fullmatch(text):
        text = whole[1].strip()
    text = _CURRENCY.sub(r"\1", text)
    text = _EMPTY.sub(r"\\emptyset", text)
    text = _DEGREES.sub("", _SCALE.sub(r" °\1", text)).strip()
    text = _PERCENT.sub(r"\\%", text)
    if grouped := _GROUPS.fullmatch(text.removesuffix("\\%")):
        separators = set(re.findall(r"[, ]", grouped[2]))
        if len(separators) == 1:
            text = (
                grouped[1]
                + re.sub(r"[, ]", "", grouped[2])
                + (grouped[3] or "")
                + text[grouped.end() :]
            )
    if power := _SCIENTIFIC.fullmatch(text):
        text = rf"{power[1]} \times 10^{{{int(power[2])}}}"
    if mixed := _MIXED.fullmatch(text):
        text = rf"{mixed[1]}({mixed[2]}+\frac{{{mixed[3]}}}{{{mixed[4]}}})"
    return text


def number(text: str) -> Fraction | None:
    """The value of a normalised answer that is a plain number or a quotient of two; None of
    anything else.
    """
    if found := _FRACTION.fullmatch(text):
        above, below = (found[1] or found[4] or "") + (found[2] or found[5]), found[3] or found[6]
        one, other = boxed.number(above.replace("--", "").replace("+-", "-")), boxed.number(below)
        return one / other if one is not None and other else None
    return boxed.number(text)


def percent(text: str) -> Fraction | None:
    """The number before a percent sign, unchanged; None for anything else."""
    return number(text.removesuffix("\\%").strip()) if text.endswith("\\%") else None


def words(text: str) -> str | None:
    """An answer that is words, or one letter in parentheses, for comparison; None for anything
    else.
    """
    bare = re.sub(r"^\(([A-Za-z])\)$", r"\1", text)
    return bare.casefold() if re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*", bare) else None


def ratio(text: str) -> str | None:
    """A ratio or a time, ``3:4``, without spaces; None for anything else."""
    tight = _COLON.sub(":", text)
    return tight if re.fullmatch(r"[-\d.]+(?::[-\d.]+)+", tight) else None


def base(text: str) -> tuple[str, str] | None:
    """Digits and base of ``2516_8``; None for anything else."""
    found = re.fullmatch(r"([0-9A-F]+)\s*_\s*\{?\s*(\d+|\w+)\s*\}?", text)
    return (found[1], found[2]) if found else None
