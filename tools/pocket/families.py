"""The four families of problems: a story of events, comparisons, shopping, work and pay.

Each takes a random source and a number of operations, and returns the question's sentences and the
raw operations ``(kind, a, b, words)``. Numbers are kept small (results mostly under 100) so that
tiny models can learn to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from tools.pocket.wordings import BOXES, DAYS, GOODS, NAMES, SENTENCES, THINGS

Raw = tuple[str, int, int, dict[str, str]]
Family = Callable[[Random, int], tuple[list[str], list[Raw]]]
TOP = 99  # running values stay at or below this
STRIDE = 20  # largest number added or taken away


def _listing(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _say(rng: Random, sentence: str, **words: object) -> str:
    wordings = SENTENCES[sentence]
    return (rng.choice(wordings) if len(wordings) > 1 else wordings[0]).format(**words)


def _somebody_else(rng: Random, who: str) -> str:
    return rng.choice([name for name in NAMES if name != who])


def story(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """One person's things through a chain of events."""
    who, thing, x = rng.choice(NAMES), rng.choice(THINGS), rng.randint(5, 40)
    words = {"who": who, "thing": thing}
    sentences, operations = [_say(rng, "start", x=x, **words)], list[Raw]()
    end = _say(rng, "how many now", **words)
    while len(operations) < n:
        other = _somebody_else(rng, who)
        kind = rng.choice(("gain", "lose", "lose", "grow", "pack", "share", "share"))
        if kind == "gain" and x + 2 <= TOP:
            b = rng.randint(2, min(STRIDE, TOP - x))
            operations.append(("gain", x, b, words))
            x += b
        elif kind == "lose" and x >= 6:
            b = rng.randint(2, min(STRIDE, x - 2))
            operations.append(("lose", x, b, words))
            x -= b
        elif kind == "grow" and x * 2 <= TOP:
            b = rng.choice([k for k in (2, 3) if x * k <= TOP])
            operations.append(("grow", x, b, words))
            x *= b
        elif kind == "pack" and len(operations) <= n - 2:
            a, b = rng.randint(2, 6), rng.randint(2, 9)
            if x + a * b > TOP:
                continue
            box = rng.choice(BOXES)
            sentences.append(_say(rng, "pack", a=a, b=b, box=box, other=other, **words))
            operations += [("pack", a, b, words | {"box": box}), ("gain", x, a * b, words)]
            x += a * b
            continue
        elif kind == "share" and len(operations) == n - 1:
            divisors = [d for d in (2, 3, 4, 5) if x % d == 0 and x // d > 1]
            if not divisors:
                continue
            b = rng.choice(divisors)
            operations.append(("share", x, b, words))
            end = _say(rng, "how many each", **words)
        else:
            continue
        sentences.append(_say(rng, kind, b=b, other=other, **words))
    return [*sentences, end], operations


def compare(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """People who have more, fewer, or several times as many as the one before; at times the sum of
    the last few.
    """
    sums = rng.randint(0, n // 2)
    people, thing = rng.sample(NAMES, n - sums + 1), rng.choice(THINGS)
    values = [rng.randint(4, 30)]
    sentences, operations = (
        [_say(rng, "first", who=people[0], x=values[0], thing=thing)],
        list[Raw](),
    )
    for other, who in pairwise(people):
        x = values[-1]
        kinds = [
            k for k, fits in (("more", x <= 48), ("fewer", x >= 6), ("times", x <= 30)) if fits
        ]
        kind = rng.choice(kinds)
        b = rng.randint(
            2, {"more": STRIDE, "fewer": min(STRIDE, x - 2), "times": 3 if x <= 20 else 2}[kind]
        )
        words = {"who": who, "other": other, "thing": thing}
        sentences.append(_say(rng, kind, b=b, **words))
        operations.append((kind, x, b, words))
        values.append({"more": x + b, "fewer": x - b, "times": x * b}[kind])
    if not sums:
        return [*sentences, _say(rng, "how many", who=people[-1], thing=thing)], operations
    total = values[-sums - 1]
    for value in values[-sums:]:
        operations.append(("sum", total, value, {"thing": thing}))
        total += value
    return [
        *sentences,
        _say(rng, "how many together", list=_listing(people[-sums - 1 :]), thing=thing),
    ], operations


def shop(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """Goods at a price each, the bill, and for an even number of operations the money left."""
    who, kinds = rng.choice(NAMES), (n + 1) // 2
    goods = [(thing, rng.randint(2, 6), rng.randint(2, 9)) for thing in rng.sample(GOODS, kinds)]
    sentences = [
        _say(rng, "costs", Thing=thing.capitalize(), price=price) for thing, _, price in goods
    ]
    sentences.append(
        _say(rng, "buys", who=who, list=_listing([f"{count} {thing}" for thing, count, _ in goods]))
    )
    operations: list[Raw] = [
        ("price", count, price, {"thing": thing}) for thing, count, price in goods
    ]
    total = goods[0][1] * goods[0][2]
    for _, count, price in goods[1:]:
        operations.append(("bill", total, count * price, {}))
        total += count * price
    if len(operations) == n:
        return [*sentences, _say(rng, "how much is it", who=who)], operations
    had = total + rng.randint(2, STRIDE)
    operations.append(("left", had, total, {"who": who}))
    return [
        *sentences,
        _say(rng, "had", who=who, x=had),
        _say(rng, "how much is left", who=who),
    ], operations


def work(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """Hours on several days, pay by the hour, then money spent and received."""
    who = rng.choice(NAMES)
    words = {"who": who}
    days = DAYS[: rng.randint(2, min(n, len(DAYS)))]
    hours = [rng.randint(2, 5) for _ in days]
    worked = _listing([f"{h} hours on {day}" for h, day in zip(hours, days, strict=True)])
    sentences, operations = [_say(rng, "works", who=who, list=worked)], list[Raw]()
    total = hours[0]
    for h in hours[1:]:
        operations.append(("hours", total, h, words))
        total += h
    wage = rng.randint(2, 9 if total <= 10 else 5)
    sentences.append(_say(rng, "wage", who=who, b=wage))
    operations.append(("pay", total, wage, words))
    x = total * wage
    while len(operations) < n:
        b = rng.randint(2, STRIDE)
        if x > b + 1 and (rng.random() < 0.6 or x + b > TOP):
            sentences.append(
                _say(rng, "spends", who=who, b=b, object=rng.choice(("ticket", "gift")))
            )
            operations.append(("left", x, b, words))
            x -= b
        elif x + b <= TOP:
            sentences.append(_say(rng, "receives", who=who, b=b, other=_somebody_else(rng, who)))
            operations.append(("money", x, b, words))
            x += b
    return [*sentences, _say(rng, "how much", who=who)], operations


FAMILIES: dict[str, Family] = {"story": story, "compare": compare, "shop": shop, "work": work}
