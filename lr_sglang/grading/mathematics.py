r"""Whether two answers to a question of mathematics are the same; units of measure; and the rules
that bring a final answer into a form that Math-Verify reads as a person would (docs/tasks.md lists
them).

Each rule is for a notation that Math-Verify alone misreads: ``10\,000`` as 10 times 0, ``1.2e3``
with Euler's number, ``3 1/2`` as 2. All are applied to both sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from lr_sglang.grading import answers
from lr_sglang.grading.grade import Grade, grade_without_answer
from lr_sglang.tasks import boxed
from lr_sglang.tasks.question import Question

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-",
        "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ",
        "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "±": r"\pm ",
        "…": r"\ldots ", "、": ",", "⟨": "(", "⟩": ")", "∈": r"\in ",
        "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
        "≈": r"\approx ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "",
        **{chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)},  # full width
    }
)  # fmt: skip
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_SUNK = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺₀₁₂₃₄₅₆₇₈₉", "0123456789-+0123456789")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|large|Large|LARGE|huge|Huge|small|normalsize|bigl?|bigr|Bigl?|Bigr)"
    r"(?![a-zA-Z])\.?"
)
_AROUND = " \t\n\"'`*“”‘’。"
_DECORATION = re.compile(
    r"\\(?:text)?color\s*\{[^{}]*\}|\\(?:label|tag\*?)\s*\{[^{}]*\}|\\\\\s*$|^\s*\\approx"
    r"|\\(?:begin|end)\{(?:aligned|align|align\*|gathered|equation|equation\*|split)\}"
)
_SET_OF = re.compile(r"\\\{\s*([a-z])\s*(?:\\mid|\||:)\s*(.*\b\1\b.*)\\\}")
_SPACE = re.compile(r"(?<!\\)\\(?:[,;:! ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~|\\\n")
_THIN_GROUPS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|,\\!|\\!,|~)+\s*(?=\d{3}(?!\d))")
_GROUPS = re.compile(r"([-+]?\d{1,3})((?:[, ]\d{3})+)(\.\d+)?")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf)?|math(?:rm|bf|it|sf)|boldsymbol|bm|mbox|underline|operatorname\*?)\s*\{([^{}]*)\}"
)
_INNER_SPACE = re.compile(r"\s+(?=[}^_])|(?<=\{)\s+")
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
_EMPTY = re.compile(r"\\varnothing|\\\{\s*\\\}|^(?i:none|no (?:real )?solutions?)$")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|dot|bar)\s*\{(\d+)\}")
# Mathematics that is typed without LaTeX.
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|psi|rho|sigma|tau|omega|pi"
_OPERATORS = "(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln"
_NAME = re.compile(
    rf"(?<![A-Za-z\\])(?:({_GREEK})(?![A-Za-z])|({_OPERATORS})(?=\s*[_^(\d\\]|\s+[a-z]\b))"
)
_SENTENCE = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]{2,})+")
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:oo|inf(?:inity)?)(?![A-Za-z])")
_POWER = re.compile(r"(?<=[\w)}])\s*\*\*\s*(?=[\w({\\-])")
_DECIMAL_POWER = re.compile(r"\^\s*\{\s*(-?\d{0,9}\.\d{1,9})\s*\}")
_NEGATIVE_POWER = re.compile(r"\^\s*(-\d+)")
_CALLED = re.compile(r"(?<![A-Za-z\\])\\?(sqrt|cbrt|exp|abs)\s*(?:\(|(?<=sqrt)(\d+))")
_LATEX = {"sqrt": r"\sqrt{%s}", "cbrt": r"\sqrt[3]{%s}", "exp": "e^{%s}", "abs": "|%s|"}
_COLON = re.compile(r"\s*(?:\{:\}|\\colon|:)\s*")
_FRACTION = re.compile(r"([-+]?)\\[dtc]?frac\{(-?\d+)\}\{(-?\d+)\}|([-+]?)\\[dtc]?frac(\d)(\d)")


def in_latex(text: str) -> str:
    """The answer in a form that Math-Verify reads; see the module."""
    text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_LOWERED)}}}", text)
    text = _SUNK.sub(lambda found: f"_{{{found[0].translate(_LOWERED)}}}", text)
    text = text.translate(_SIGNS).strip(_AROUND).rstrip("\\")  # of a "\\ " or a line's end
    text = _THIN_GROUPS.sub("", text)
    text = _LAYOUT.sub(
        "", _DECORATION.sub("", text).replace("\\langle", "(").replace("\\rangle", ")")
    )
    text = _REPEATING.sub(_quotient, re.sub(r"(?<=\.\d)(\d*)(?:\\l?dots|\.{3})$", r"\1", text))
    for _ in range(3):  # nested ones
        text = _WRAPPED.sub(r" \1 ", text)
    text = _SPACE.sub(" ", text)
    text = text.replace("\\(", "").replace("\\)", "").replace("\\[", "").replace("\\]", "")
    text = _INNER_SPACE.sub("", " ".join(text.split()))
    if text.startswith("$") and text.endswith("$") and len(text) > 1:
        text = text.strip("$").strip()
    text = re.sub(r"(?<!\\)[.,;]$", "", text).strip()
    while whole := _WHOLE_BRACES.fullmatch(text):
        text = whole[1].strip()
    text = _CURRENCY.sub(r"\1", text)
    if built := _SET_OF.fullmatch(text):
        text = built[2]
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
    return text if _SENTENCE.fullmatch(text) else _typed(text)


def _fraction_power(found: re.Match[str]) -> str:
    value = Fraction(found[1])
    return rf"^{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def _quotient(repeating: re.Match[str]) -> str:
    """A decimal number whose last digits repeat, as a fraction."""
    whole, once, again = repeating.groups()
    below = (10 ** len(again) - 1) * 10 ** len(once)
    above = int(f"{whole}{once}{again}") - int(f"{whole}{once}" or 0)
    return rf"\frac{{{above}}}{{{below}}}"


def _typed(text: str) -> str:
    """Mathematics that is typed without LaTeX, such as ``2*sqrt(3)*pi``, in LaTeX."""
    text = _NEGATIVE_POWER.sub(r"^{\1}", _POWER.sub("^", text))
    text = _DECIMAL_POWER.sub(_fraction_power, text)
    text = _INFINITY.sub(r"\\infty ", text)
    for _ in range(len(_CALLED.findall(text))):
        if (found := _CALLED.search(text)) is None:
            break
        inner = found[2]
        rest = text[found.end() :]
        if inner is None:
            end = _closing(rest)
            if end is None:
                break
            inner = rest[:end]
            rest = rest[end + 1 :]
        text = text[: found.start()] + _LATEX[found[1]] % inner + rest
    return _NAME.sub(lambda found: f"\\{found[0]} ", text).strip()


def _closing(text: str) -> int | None:
    """Where the parenthesis that was opened before ``text`` is closed; None if it is not."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return place
    return None


def number_or_quotient(text: str) -> Fraction | None:
    """The value of a normalised answer that is a plain number or a quotient of two; None of
    anything else.
    """
    if found := _FRACTION.fullmatch(text):
        above = (found[1] or found[4] or "") + (found[2] or found[5])
        below = found[3] or found[6]
        one, other = boxed.number(above.replace("--", "").replace("+-", "-")), boxed.number(below)
        return one / other if one is not None and other else None
    return boxed.number(text)


def percent(text: str) -> Fraction | None:
    """The number before a percent sign, unchanged; None for anything else."""
    return number_or_quotient(text.removesuffix("\\%").strip()) if text.endswith("\\%") else None


def words(text: str) -> str | None:
    """An answer that is words, or one letter in parentheses, for comparison; None for anything
    else.
    """
    bare = re.sub(r"^(?i:option |choice )?\(?([A-Za-z])\)?$", r"\1", text)
    bare = re.sub(r"^(?i:an?|the) (?=[A-Za-z]{2})", "", bare)
    return bare.casefold() if re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*", bare) else None


def ratio(text: str) -> str | None:
    """A ratio or a time, ``3:4``, without spaces; None for anything else."""
    tight = re.sub(r" ?([ap])\.? ?m\.?$", r"\1m", _COLON.sub(":", text), flags=re.IGNORECASE)
    found = re.fullmatch(r"[-\d.]+(?::[-\d.]+)+(?:[ap]m)?", tight, re.IGNORECASE)
    return tight.casefold() if found else None


def base(text: str) -> tuple[str, str] | None:
    """Digits and base of ``2516_8``; None for anything else."""
    found = re.fullmatch(r"([0-9A-F]+)\s*_\s*\{?\s*(\d+|\w+)\s*\}?", text)
    return (found[1], found[2]) if found else None


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
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_POWER_OF = re.compile(r"(square|sq|cubic|cu)\.? (\D+)|(\D+?) ?\^ ?\{?([23])\}?")
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
    if power := _POWER_OF.fullmatch(word):
        inner = canonical(power[2] or power[3])
        return inner and f"{inner}^{power[4] or _POWERS[power[1]]}"
    return UNITS.get(word) or UNITS.get(word.removesuffix("s"))


_DOTS = re.compile(r"\\(?:[lc]?dots[cmbio]?)(?![A-Za-z])|\.{3}")
_OUTER = re.compile(r"\\\{(.*)\\\}|(.*)")
_LOOSE = re.compile(r"(?<!\w) | (?!\w)")
# Words that follow an answer and do not change it.
_REMARK = re.compile(
    r"(?<=\S)[\s,;]*(?:"
    r"\sfor (?:all|any|every|each)\b(?!.*[,;].*\bfor\b).*"
    r"|\s(?:where|because|since|is the (?:final |right |correct )?answer)\b.*"
    r"|\((?:only|[a-z]{2,}(?: [a-z]{2,})*)\)"
    r"|[\s,(](?:for )?[a-z](?:, ?[a-z])* ?\\(?:in|geq?) ?"
    r"(?:[01]|[NZQR]|\\mathbb ?\{?[NZQR]\}?\S*)\)?"
    r")$"
)

LONGEST_ANSWER = 3000  # characters of a final answer; a longer one is none
_SPACED = re.compile(r"\s*,\s+")
Compare = Callable[[str, str], tuple[bool, str]]  # gold and answer: same or not, and why not


def grade_mathematics(text: str, question: Question, compare: Compare) -> Grade:
    """Grades an answer of mathematics.

    Args:
        compare: Math-Verify in another process (``GradingPool.compare``).
    """
    answer = answers.final_answer(text)
    if answer is None or question.answer is None:
        return grade_without_answer(answer, question, "text")
    # A gold answer may itself be a worked solution that ends in a box.
    gold = boxed.boxed(question.answer) or question.answer
    return same_mathematics(answer, gold, compare)


def same_mathematics(answer: str, gold: str, compare: Compare) -> Grade:
    """Compares a final answer with the gold one: here where that is certain, and else by
    Math-Verify.
    """
    if not answer.strip():
        return Grade(False, answer, by="text", reason="the final answer is empty")
    if len(answer) > LONGEST_ANSWER:
        return Grade(
            False,
            answer[:LONGEST_ANSWER],
            by="text",
            reason=f"longer than {LONGEST_ANSWER} characters",
        )
    ours, theirs = in_latex(answer), in_latex(gold)
    # A list of numbers of three digits without spaces looks like thousands.
    if ours == theirs or in_latex(_SPACED.sub(",", answer)) == in_latex(_SPACED.sub(",", gold)):
        return Grade(True, answer, by="text")
    if bool(_REMARK.search(ours)) != bool(_REMARK.search(theirs)):
        ours, theirs = _REMARK.sub("", ours), _REMARK.sub("", theirs)
    decided = _here(ours, theirs)
    if decided is None:
        one, other = quantity(ours), quantity(theirs)
        if one and other and one.known and other.known and one.unit != other.unit:
            return Grade(False, answer, by="units", reason=f"{one.unit}, not {other.unit}")
        ours = one.number if one else ours
        theirs = other.number if other else theirs
        decided = True if ours == theirs else _here(ours, theirs)
    if decided is not None:
        return Grade(
            decided, answer, by="number" if number_or_quotient(ours) is not None else "text"
        )
    verdict, reason = compare(theirs, ours)
    return Grade(verdict, answer, by="math-verify", reason=reason)


def _here(ours: str, theirs: str) -> bool | None:
    """Compares answers that need no algebra (whole numbers, words, ratios, times, bases); None for
    all others.
    """
    if _DOTS.search(ours) or _DOTS.search(theirs):  # Math-Verify leaves them out
        return _spelled_out(ours) == _spelled_out(theirs)
    if _LOOSE.sub("", ours) == _LOOSE.sub("", theirs):
        return True
    one, other = number_or_quotient(ours), number_or_quotient(theirs)
    if one is not None and other is not None:
        if one == other:
            return True
        return False if one.denominator == other.denominator == 1 else None
    # 50 % may be asked for as 50, and is 0.5.
    for share, value in ((percent(ours), other), (percent(theirs), one)):
        if share is not None and value is not None and value in (share, share / 100):
            return True
    for form in (words, ratio, base):
        first, second = form(ours), form(theirs)
        if first is not None and second is not None:
            return first == second
    return None


def _spelled_out(text: str) -> list[str]:
    """The parts of a list; whole numbers that dots leave out are there if their steps are equal."""
    found = _OUTER.fullmatch(text)
    assert found is not None
    parts = ["".join(part.split()) for part in (found[1] or found[2] or "").split(",")]
    dots = [place for place, part in enumerate(parts) if _DOTS.fullmatch(part)]
    whole = [int(part) for part in parts if re.fullmatch(r"-?\d{1,9}", part)]
    if len(dots) == 1 and len(whole) == len(parts) - 1 and 2 <= dots[0] < len(whole):
        before = whole[: dots[0]]
        after = whole[dots[0] :]
        step = before[1] - before[0]
        if step and 0 <= (after[0] - before[-1]) // step <= LONGEST_ANSWER:
            return [
                str(one) for one in (*before, *range(before[-1] + step, after[0], step), *after)
            ]
    return [_DOTS.sub(r"\\ldots", part) for part in parts]
