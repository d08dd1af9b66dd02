"""The four families of problems: a story of events, comparisons, shopping, work and pay.

Each takes a random source and a number of operations, and returns the question's sentences and the raw operations
``(kind, a, b, words)``. Numbers are kept small (results mostly under 100) so that tiny models can learn to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lr_sglang.pocket.wordings import BOXES, DAYS, GOODS, NAMES, THINGS

Raw = tuple[str, int, int, dict[str, str]]
Family = Callable[[Random, int], tuple[list[str], list[Raw]]]
TOP = 99  # running values stay at or below this
STRIDE = 20  # largest number added or taken away


def _listing(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def story(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """One person's things through a chain of events."""
    who, thing, x = rng.choice(NAMES), rng.choice(THINGS), rng.randint(5, 40)
    sentences = [rng.choice((f"{who} has {x} {thing}.", f"{who} starts with {x} {thing}."))]
    operations: list[Raw] = []
    words = {"who": who, "thing": thing}
    end = rng.choice((f"How many {thing} does {who} have now?", f"How many {thing} does {who} have at the end?"))
    while len(operations) < n:
        other = rng.choice([name for name in NAMES if name != who])
        kind = rng.choice(("gain", "lose", "lose", "grow", "pack", "share", "share"))
        if kind == "gain" and x + 2 <= TOP:
            b = rng.randint(2, min(STRIDE, TOP - x))
            sentences.append(
                rng.choice((f"{who} buys {b} more {thing}.", f"{other} gives {who} {b} {thing}.", f"Then {who} finds {b} {thing}."))
            )
            operations.append(("gain", x, b, words))
            x += b
        elif kind == "lose" and x >= 6:
            b = rng.randint(2, min(STRIDE, x - 2))
            sentences.append(
                rng.choice((f"{who} gives {b} {thing} to {other}.", f"{who} loses {b} {thing}.", f"Then {who} sells {b} of the {thing}."))
            )
            operations.append(("lose", x, b, words))
            x -= b
        elif kind == "grow" and x * 2 <= TOP:
            b = rng.choice([k for k in (2, 3) if x * k <= TOP])
            sentences.append(f"{who} trades and now has {b} times as many {thing}.")
            operations.append(("grow", x, b, words))
            x *= b
        elif kind == "pack" and len(operations) <= n - 2:
            a, b = rng.randint(2, 6), rng.randint(2, 9)
            if x + a * b <= TOP:
                box = rng.choice(BOXES)
                sentences.append(
                    rng.choice((f"{who} buys {a} {box} with {b} {thing} each.", f"{other} brings {a} {box} with {b} {thing} each."))
                )
                operations += [("pack", a, b, words | {"box": box}), ("gain", x, a * b, words)]
                x += a * b
        elif kind == "share" and len(operations) == n - 1:
            divisors = [d for d in (2, 3, 4, 5) if x % d == 0 and x // d > 1]
            if divisors:
                b = rng.choice(divisors)
                sentences.append(f"{who} shares the {thing} equally among {b} friends.")
                operations.append(("share", x, b, words))
                end = f"How many {thing} does each friend get?"
    return [*sentences, end], operations


def compare(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """People who have more, fewer, or several times as many as the one before; at times the sum of the last few."""
    sums = rng.randint(0, n // 2)
    people, thing = rng.sample(NAMES, n - sums + 1), rng.choice(THINGS)
    values = [rng.randint(4, 30)]
    sentences, operations = [f"{people[0]} has {values[0]} {thing}."], list[Raw]()
    for other, who in zip(people, people[1:], strict=False):
        x = values[-1]
        kinds = [k for k, fits in (("more", x <= 48), ("fewer", x >= 6), ("times", x <= 30)) if fits]
        kind = rng.choice(kinds)
        b = rng.randint(2, {"more": STRIDE, "fewer": min(STRIDE, x - 2), "times": 3 if x <= 20 else 2}[kind])
        phrase = {"more": f"{b} more {thing} than", "fewer": f"{b} fewer {thing} than", "times": f"{b} times as many {thing} as"}
        sentences.append(f"{who} has {phrase[kind]} {other}.")
        operations.append((kind, x, b, {"who": who, "other": other, "thing": thing}))
        values.append({"more": x + b, "fewer": x - b, "times": x * b}[kind])
    if not sums:
        return [*sentences, f"How many {thing} does {people[-1]} have?"], operations
    total = values[-sums - 1]
    for value in values[-sums:]:
        operations.append(("sum", total, value, {"thing": thing}))
        total += value
    asked = _listing(people[-sums - 1 :])
    return [*sentences, rng.choice((f"How many {thing} do {asked} have together?", f"How many {thing} do {asked} have in total?"))], operations


def shop(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """Goods at a price each, the bill, and for an even number of operations the money left."""
    who, kinds = rng.choice(NAMES), (n + 1) // 2
    goods = [(thing, rng.randint(2, 6), rng.randint(2, 9)) for thing in rng.sample(GOODS, kinds)]
    sentences = [f"{thing.capitalize()} cost {price} dollars each." for thing, _, price in goods]
    sentences.append(f"{who} {rng.choice(('buys', 'orders'))} {_listing([f'{count} {thing}' for thing, count, _ in goods])}.")
    operations: list[Raw] = [("price", count, price, {"thing": thing}) for thing, count, price in goods]
    total = goods[0][1] * goods[0][2]
    for _, count, price in goods[1:]:
        operations.append(("bill", total, count * price, {}))
        total += count * price
    if len(operations) == n:
        return [*sentences, rng.choice((f"How much does {who} pay?", "How many dollars is the bill?"))], operations
    had = total + rng.randint(2, STRIDE)
    sentences.append(f"{who} had {had} dollars.")
    operations.append(("left", had, total, {"who": who}))
    return [*sentences, rng.choice((f"How much money does {who} have left?", "How many dollars are left?"))], operations


def work(rng: Random, n: int) -> tuple[list[str], list[Raw]]:
    """Hours on several days, pay by the hour, then money spent and received."""
    who = rng.choice(NAMES)
    words = {"who": who}
    days = DAYS[: rng.randint(2, min(n, len(DAYS)))]
    hours = [rng.randint(2, 5) for _ in days]
    sentences = [f"{who} works {_listing([f'{h} hours on {day}' for h, day in zip(hours, days, strict=True)])}."]
    operations: list[Raw] = []
    total = hours[0]
    for h in hours[1:]:
        operations.append(("hours", total, h, words))
        total += h
    wage = rng.randint(2, 9 if total <= 10 else 5)
    sentences.append(rng.choice((f"The job pays {wage} dollars an hour.", f"{who} earns {wage} dollars an hour.")))
    operations.append(("pay", total, wage, words))
    x = total * wage
    while len(operations) < n:
        b = rng.randint(2, STRIDE)
        if x > b + 1 and (rng.random() < 0.6 or x + b > TOP):
            sentences.append(rng.choice((f"{who} pays {b} dollars for a {rng.choice(('ticket', 'gift'))}.", f"Then {who} spends {b} dollars.")))
            operations.append(("left", x, b, words))
            x -= b
        elif x + b <= TOP:
            giver = rng.choice([name for name in NAMES if name != who])
            sentences.append(rng.choice((f"{giver} gives {who} {b} dollars.", f"{who} finds {b} dollars.")))
            operations.append(("money", x, b, words))
            x += b
    return [*sentences, rng.choice((f"How much money does {who} have?", f"How many dollars does {who} have now?"))], operations


FAMILIES: dict[str, Family] = {"story": story, "compare": compare, "shop": shop, "work": work}
