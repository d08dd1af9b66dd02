"""Units of measure: which words are the same unit, and a quantity taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
LONGEST = 60  # characters of a unit; parsing recurses for each of its parts
UNITS = {
    word: same.split()[0] for same in re.split("[;\n]", _SAME.strip()) for word in same.split()
}
_RATE = re.compile(r"(.+?)\s*(?:/|\bper\b)\s*(.+)")
_POWER = re.compile(r"(.+?)\s*(?:\^\s*\{?\s*([23])\s*\}?|([²³]))$")
_SQUARE = re.compile(r"(square|sq\.?|cubic|cu\.?)\s+(.+)")
_QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:\d[\d.,]*|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|\.\d+)(?:/\d+)?(?:\s*\\pi|\s*\\sqrt\s*\{[^{}]*\})?)"
    r"\s*(?P<unit>[a-zA-Z°][a-zA-Z°/^{}\d .²³-]*)"
)


@dataclass(frozen=True)
class Quantity:
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
    """Our name of a unit: ``centimetres`` is ``cm``, ``sq ft`` is ``ft^2``, ``miles per hour`` is
    ``mph``.
    """
    word = " ".join(word.casefold().split()).rstrip(".")
    if len(word) > LONGEST:
        return None
    if square := _SQUARE.fullmatch(word):
        base = canonical(square[2])
        return f"{base}^{3 if square[1].startswith('cu') else 2}" if base else None
    for known in (word, word.removesuffix("s")):
        if known in UNITS:
            return UNITS[known]
    if rate := _RATE.fullmatch(word):
        above, below = canonical(rate[1]), canonical(rate[2])
        both = f"{above}/{below}"
        return {"mi/h": "mph", "km/h": "kmh"}.get(both, both) if above and below else None
    if power := _POWER.fullmatch(word):
        base = canonical(power[1])
        return f"{base}^{power[2] or '23'['²³'.index(power[3])]}" if base else None
    return None
