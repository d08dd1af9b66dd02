"""Math-Verify on two normalised answers, and what it gets wrong. It runs in a worker process
(``pool.GradingPool``), and is imported there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

CLOSE = 1e-3  # how far apart rounded numbers may be, relative to the larger one
_OR = re.compile(r"\bor\b|\\lor\b|\\vee\b")
EXACT = 1e-50  # the same for numbers without a decimal point


def compare_expressions(gold: str, answer: str) -> tuple[bool, str]:
    """Whether they are the same, and why not."""
    from math_verify import verify

    known, given = _parsed(gold), _parsed(answer)
    if given is None:
        return False, "it cannot be read"
    same = verify(known, given, timeout_seconds=None, allow_set_relation_comp=True)
    if same and _apart(known, given):
        return False, "they differ in digits that rounding hides"
    return bool(same), ""


def _parsed(text: str) -> Any:
    """The value of an answer; None if not all of it can be read.

    Only LaTeX is read: plain expressions would be looked for inside of what is broken. Units are
    kept: Math-Verify's list of them has single letters, such as the t of 3t.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import And, FiniteSet, Union
    from sympy.core.relational import Relational

    rules = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    config = LatexExtractionConfig(normalization_config=rules)
    found = parse(f"${text}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    if found and not _OR.search(text):
        return _with_imaginary_unit(found[0])
    if "\\pm" in text:  # within a fraction
        signs = (("+", "-"), ("-", "+"))
        both = [_parsed(text.replace(r"\pm", one).replace(r"\mp", other)) for one, other in signs]
        return None if None in both else FiniteSet(*(getattr(one, "rhs", one) for one in both))
    parts = [_parsed(part) for part in _OR.split(text)] if _OR.search(text) else []
    if parts and all(isinstance(part, Relational | And) for part in parts):
        with suppress(Exception):  # it has many kinds for what is no set of numbers
            return Union(*(part.as_set() for part in parts))
    return found[0] if found else None


def _with_imaginary_unit(value: Any) -> Any:
    """The value with the imaginary unit for the symbol i, which Math-Verify takes as a variable."""
    from sympy import Basic, I
    from sympy.core.relational import Equality, Relational

    if not isinstance(value, Basic) or value.atoms(Relational) - value.atoms(Equality):
        return value
    units = [symbol for symbol in value.free_symbols if str(symbol) in ("i", "imath")]
    return value.xreplace(dict.fromkeys(units, I)) if units else value


def _apart(gold: Any, answer: Any) -> bool:
    """Whether numbers differ that Math-Verify finds equal: it rounds to six decimals, and takes
    differences below 1e-15 for none, so that it finds all small numbers equal.
    """
    from sympy import Float, Rational

    pairs = _numbers(gold), _numbers(answer)
    if len(pairs[0]) != len(pairs[1]):
        return False
    for one, other in zip(*pairs, strict=True):
        one = one.doit()
        other = other.doit()
        if isinstance(one, Rational) and isinstance(other, Rational):
            if one != other:
                return True
            continue
        allowed = CLOSE if one.has(Float) or other.has(Float) else EXACT
        size = max(abs(one.evalf()), abs(other.evalf()))
        if abs((one - other).evalf()) > allowed * size:
            return True
    return False


def _numbers(value: Any) -> list[Any]:
    """The numbers of an answer, in an order that equal answers share; none if it has variables."""
    from sympy import Eq, FiniteSet, Interval, Tuple, UnevaluatedExpr, im, re

    if isinstance(value, Eq):
        value = value.rhs if value.lhs.is_Symbol else None
    if isinstance(value, Interval):
        value = Tuple(value.start, value.end)
    parts = list(value.args) if isinstance(value, FiniteSet | Tuple) else [value]
    if not all(getattr(part, "is_number", False) and part.is_finite for part in parts):
        return []
    if any(part.has(UnevaluatedExpr) for part in parts):  # a percentage: 9 % may stand for 9
        return []
    if isinstance(value, FiniteSet):
        parts.sort(key=lambda part: (float(re(part)), float(im(part))))
    return parts
