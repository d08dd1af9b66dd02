"""The order of a benchmark, chosen so that a machine that slows down affects all variants equally.

With one answer at a time, all variants make each sample in turn, and each is first equally often.
With several at a time, each variant makes blocks of samples, in a random order and its reverse (A B
B A). Servers that cannot run together alternate in the same way, each with half of the questions.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import servers
from lr_sglang.bench.variants import SampleOfQuestion, Variant
from lr_sglang.config import Deployment
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import Work

QuestionSamples = tuple[SampleOfQuestion, ...]
# Minimum answers of a block per concurrent answer: at its beginning and end, fewer than
# ``concurrency`` run.
FULL = 4
CACHES = "emptied at every turn"


@dataclass(frozen=True)
class Turn:
    """Consecutive samples of one variant."""

    variant: Variant
    items: QuestionSamples

    @property
    def works(self) -> list[Work]:
        """The samples of this turn."""
        return [Work(question, sample, self.variant.mode) for question, sample in self.items]


@dataclass(frozen=True)
class Stretch:
    """The turns during which the same servers run; ``servers`` are the numbers of their sets."""

    servers: tuple[int, ...]
    turns: tuple[Turn, ...]


def turns(
    variants: Sequence[Variant], items: Sequence[SampleOfQuestion], concurrency: int, seed: int
) -> list[Turn]:
    """The turns of variants whose servers run.

    Args:
        items: samples of questions, in order.
        concurrency: number of samples at a time.
    """
    draw = random.Random(f"{seed}/{concurrency}/{len(variants)}")
    if concurrency == 1:
        return list(_interleaved(variants, items, draw))
    order = list(variants)
    draw.shuffle(order)
    middle = (len(items) + 1) // 2 if len(items) >= 2 * FULL * concurrency else len(items)
    halves = ((order, items[:middle]), (order[::-1], items[middle:]))
    return [Turn(variant, tuple(half)) for each, half in halves for variant in each if half]


def _interleaved(
    variants: Sequence[Variant], items: Sequence[SampleOfQuestion], draw: random.Random
) -> list[Turn]:
    found = []
    order = list(variants)
    for number, item in enumerate(items):
        place = number % max(1, len(order))
        if place == 0:
            draw.shuffle(order)
        found += [Turn(variant, (item,)) for variant in (*order[place:], *order[:place])]
    return found


Sets = Sequence[Sequence[Variant]]  # the variants that use each set of servers


def one_stretch(sets: Sets, items: Mapping[str, QuestionSamples], seed: int) -> list[Stretch]:
    """One stretch, during which all servers run."""
    found = _turns([one for of in sets for one in of], items, seed)
    used = sorted(number for number, of in enumerate(sets) if any(items[one.task] for one in of))
    return [Stretch(tuple(used), tuple(found))] if found else []


def in_blocks(sets: Sets, items: Mapping[str, QuestionSamples], seed: int) -> list[Stretch]:
    """Stretches of one set of servers each: from first to last, then back, each time with half of
    the samples.
    """
    first = {task: mine[: (len(mine) + 1) // 2] for task, mine in items.items()}
    second = {task: mine[(len(mine) + 1) // 2 :] for task, mine in items.items()}
    numbered = list(enumerate(sets))
    found = list[Stretch]()
    for half, order in ((first, numbered), (second, numbered[::-1])):
        for number, of in order:
            if mine := _turns(of, half, seed + (half is second)):
                # B B in A B B A: the servers keep running
                stay = bool(found) and found[-1].servers == (number,)
                before = found.pop().turns if stay else ()
                found.append(Stretch((number,), (*before, *mine)))
    return found


def _turns(
    variants: Sequence[Variant], items: Mapping[str, QuestionSamples], seed: int
) -> list[Turn]:
    """The turns, task by task; variants of the same concurrency alternate."""
    alike: dict[tuple[str, int], list[Variant]] = {
        (task, variant.concurrency): []
        for task in items
        for variant in variants
        if variant.task == task
    }
    for variant in variants:
        alike[variant.task, variant.concurrency].append(variant)
    return [
        turn
        for (task, at_once), of in alike.items()
        for turn in turns(of, items[task], at_once, seed)
    ]


@dataclass(frozen=True)
class Order:
    """The order of a run or benchmark.

    Attributes:
        sets: the variants that share servers, and the deployment that they need;
            ``Stretch.servers`` are indices.
        stretches: in order; between two of them servers are stopped and started.
        about: a description for run.json; empty for a run without comparison.
    """

    sets: Sequence[tuple[Sequence[Variant], Deployment]]
    stretches: Sequence[Stretch]
    about: dict[str, Any]

    @property
    def variants(self) -> list[Variant]:
        return [variant for of, _ in self.sets for variant in of]

    @property
    def turns(self) -> list[Turn]:
        return [turn for stretch in self.stretches for turn in stretch.turns]


def samples_of(questions: Collection[Question], samples: int) -> QuestionSamples:
    """Each question ``samples`` times."""
    return tuple((question, sample) for question in questions for sample in range(samples))


def side_by_side(
    plan: Plan, task: str, suffix: str, items: QuestionSamples, concurrency: int = 1
) -> Order:
    """The order of a plan: one set of servers after another; modes that share servers take turns,
    from empty caches.

    Otherwise a mode would find the prompt in the prefix cache, and the answer of the mode before it
    among the n-grams.
    """
    asked = {"questions": task, "prompt_suffix": suffix}
    sets = []
    stretches = []
    variants = [Variant("", mode, task, concurrency, plan, asked) for mode in plan.modes]
    for number, of in enumerate(servers.server_sets(variants)):
        mine = [Turn(of[0], items)]
        if len(of) > 1:
            each = [Turn(variant, (item,)) for item in items for variant in of]
            mine = each if concurrency == 1 else turns(of, items, concurrency, 0)
        sets.append((of, servers.needed_runtimes(of)))
        stretches.append(Stretch((number,), tuple(mine)))
    return Order(sets, stretches, {"caches": CACHES} if len(plan.modes) > len(sets) else {})


def in_turns(
    variants: Sequence[Variant], items: Mapping[str, QuestionSamples], asked: str, seed: int
) -> Order:
    """The order of variants that are compared.

    Args:
        items: by task.
        asked: whether sets of servers run ``together``, in ``blocks``, or ``auto``.
        seed: of the random order.
    """
    sets = servers.server_sets(variants)
    needed = [servers.needed_runtimes(of) for of in sets]
    how, why = servers.together_or_in_turns(asked, needed)
    if how == "together":
        needed = [servers.needed_runtimes(of, variants) for of in sets]
    stretches = (one_stretch if how == "together" else in_blocks)(sets, items, seed)
    about = {
        "servers": how,
        "why": why,
        "seed": seed,
        "sets": [[variant.name for variant in of] for of in sets],
        "stretches": [_summary(stretch) for stretch in stretches],
        "caches": CACHES,
    }
    return Order(list(zip(sets, needed, strict=True)), stretches, about)


def _summary(stretch: Stretch) -> dict[str, Any]:
    """A short description for run.json; the order itself follows from the seed."""
    return {
        "servers": [number + 1 for number in stretch.servers],
        "turns": len(stretch.turns),
        "samples": sum(len(turn.items) for turn in stretch.turns),
        "first": [
            f"{turn.items[0][0].id}/{turn.items[0][1]} {turn.variant.name}"
            for turn in stretch.turns[:24]
        ],
    }
