"""In which order a benchmark makes its samples, so that a machine that slows down slows all variants alike.

One answer at a time: every sample of every question is made by all variants in turn; who begins is drawn, and then
moves on, so that each has every place equally often. Several at a time: variants would disturb each other, so they have
blocks of their own, in an order that is drawn and then reversed (A B B A). Servers that cannot be up together take
turns in the same way, each with half of the questions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")
Item = TypeVar("Item")

# Answers that a block has at least for each that is made at a time: it begins and ends with fewer at work.
FULL = 4


@dataclass(frozen=True)
class Turn(Generic[V, Item]):
    """Samples that one variant makes without another one between them."""

    variant: V
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Stretch(Generic[V, Item]):
    """What is done while the same servers are up; ``servers`` are the numbers of their sets."""

    servers: tuple[int, ...]
    turns: tuple[Turn[V, Item], ...]


def turns(variants: Sequence[V], items: Sequence[Item], concurrency: int, seed: int) -> list[Turn[V, Item]]:
    """The turns of variants that have their servers up.

    Args:
        items: samples of questions, in order.
        concurrency: how many are made at a time.
    """
    draw = random.Random(f"{seed}/{concurrency}/{len(variants)}")
    if concurrency == 1:
        return list(_interleaved(variants, items, draw))
    order = list(variants)
    draw.shuffle(order)
    middle = (len(items) + 1) // 2 if len(items) >= 2 * FULL * concurrency else len(items)
    halves = ((order, items[:middle]), (order[::-1], items[middle:]))
    return [Turn(variant, tuple(half)) for each, half in halves for variant in each if half]


def _interleaved(variants: Sequence[V], items: Sequence[Item], draw: random.Random) -> list[Turn[V, Item]]:
    found, order = [], list(variants)
    for number, item in enumerate(items):
        place = number % max(1, len(order))
        if place == 0:
            draw.shuffle(order)
        found += [Turn(variant, (item,)) for variant in (*order[place:], *order[:place])]
    return found


@dataclass(frozen=True)
class Part(Generic[V, Item]):
    """What is asked of the same questions.

    Attributes:
        sets: by set of servers, the variants that use it, and how many answers each makes at a time.
        items: samples of questions, in order.
    """

    sets: tuple[tuple[tuple[V, int], ...], ...]
    items: tuple[Item, ...]


def together(parts: Sequence[Part[V, Item]], seed: int) -> list[Stretch[V, Item]]:
    """All servers are up at once."""
    found = [turn for part in parts for turn in _turns([one for of in part.sets for one in of], part.items, seed)]
    used = sorted({number for part in parts for number, of in enumerate(part.sets) if of})
    return [Stretch(tuple(used), tuple(found))] if found else []


def in_blocks(parts: Sequence[Part[V, Item]], seed: int) -> list[Stretch[V, Item]]:
    """One set of servers is up at a time: the first to the last, then back, each time with half of the samples."""
    numbers = list(range(max((len(part.sets) for part in parts), default=0)))
    found: list[Stretch[V, Item]] = []
    for number, second in [(n, False) for n in numbers] + [(n, True) for n in numbers[::-1]]:
        mine: list[Turn[V, Item]] = []
        for part in parts:
            middle = (len(part.items) + 1) // 2
            mine += _turns(part.sets[number], part.items[middle:] if second else part.items[:middle], seed + second)
        if mine:
            stay = bool(found) and found[-1].servers == (number,)  # the B B of A B B A: they stay up
            before = found.pop().turns if stay else ()
            found.append(Stretch((number,), (*before, *mine)))
    return found


def _turns(variants: Sequence[tuple[V, int]], items: Sequence[Item], seed: int) -> list[Turn[V, Item]]:
    alike: dict[int, list[V]] = defaultdict(list)
    for variant, concurrency in variants:
        alike[concurrency].append(variant)
    return [turn for concurrency, of in alike.items() for turn in turns(of, items, concurrency, seed)]
