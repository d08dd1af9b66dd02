"""What is made when: the variants with their servers, and the order of their samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import servers
from lr_sglang.bench.schedule import Part, Stretch, Turn, in_blocks, together
from lr_sglang.bench.variants import Item, Variant
from lr_sglang.config import Deployment
from lr_sglang.tasks import Question

Items = tuple[Item, ...]


@dataclass(frozen=True)
class Order:
    """What is made when.

    Attributes:
        sets: by number, the variants that share servers, and the deployment that they need.
        stretches: what is made while the same servers are up, one after the other.
        about: the same for run.json; empty for a run that compares nothing.
    """

    sets: Sequence[tuple[Sequence[Variant], Deployment]]
    stretches: Sequence[Stretch[Variant, Item]]
    about: dict[str, Any]

    @property
    def variants(self) -> list[Variant]:
        """All of them."""
        return [variant for of, _ in self.sets for variant in of]

    @property
    def turns(self) -> list[Turn[Variant, Item]]:
        """All of them, in order."""
        return [turn for stretch in self.stretches for turn in stretch.turns]


def samples_of(questions: Collection[Question], samples: int) -> Items:
    """Each question so many times."""
    return tuple((question, sample) for question in questions for sample in range(samples))


def side_by_side(plan: Plan, task: str, suffix: str, items: Items, concurrency: int = 1) -> Order:
    """The modes of a plan: those that can share servers side by side, and one set of servers after the other."""
    asked = {"questions": task, "prompt_suffix": suffix}
    shared = plan.server_sets(plan.modes)
    of = [Variant("", tuple(modes), task, concurrency, plan, asked) for modes in shared]
    stretches = [Stretch((number,), (Turn(variant, items),)) for number, variant in enumerate(of)]
    return Order([([variant], servers.needed([variant])) for variant in of], stretches, {})


def in_turns(variants: Sequence[Variant], items: Mapping[str, Items], asked: str, seed: int) -> Order:
    """Variants that are compared (see ``schedule``).

    Args:
        items: by task.
        asked: whether sets of servers are up ``together``, in ``blocks``, or ``auto``.
        seed: of what is drawn of the order.
    """
    sets = servers.server_sets(variants)
    needed = [servers.needed(of) for of in sets]
    parts = [
        Part(tuple(tuple((v, v.concurrency) for v in of if v.task == task) for of in sets), mine)
        for task, mine in items.items()
    ]
    how, why = servers.together_or_in_turns(asked, needed)
    if how == "together":
        needed = [servers.needed(of, variants) for of in sets]
    stretches = (together if how == "together" else in_blocks)(parts, seed)
    about = {
        "servers": how,
        "why": why,
        "seed": seed,
        "sets": [[variant.name() for variant in of] for of in sets],
        "stretches": [_summary(stretch) for stretch in stretches],
        "caches": "emptied whenever another variant's turn comes",
    }
    return Order(list(zip(sets, needed, strict=True)), stretches, about)


def _summary(stretch: Stretch[Variant, Item]) -> dict[str, Any]:
    """For people who want to know what was made when; the order itself comes of the seed."""
    return {
        "servers": [number + 1 for number in stretch.servers],
        "turns": len(stretch.turns),
        "samples": sum(len(turn.items) for turn in stretch.turns),
        "first": [f"{turn.items[0][0].id}/{turn.items[0][1]} {turn.variant.name()}" for turn in stretch.turns[:24]],
    }
