"""How much a lookahead policy can have in flight: what its runtimes must have room for, and what an answer may take."""

from __future__ import annotations

from functools import lru_cache

from lr_sglang.config import Lookahead, Role
from lr_sglang.steps.tree import Node, StepTree

# Beside the branches that count: what was cancelled and has not left the runtime yet.
SPARE = 2
# SGLang stops running work for what is this much more urgent; nothing of ours is.
PREEMPTS = 10
# Prefixes that the adaptive policy lets a tree of several versions have; a tree of one has as many as it is deep.
MOST = 64


def in_flight(look: Lookahead, role: Role) -> int:
    """The most requests of one answer that a role can have at a time, hedges included."""
    return needed(look, role) + hedges(look, role)


@lru_cache(maxsize=1024)  # asked before every branch
def needed(look: Lookahead, role: str) -> int:
    """The same without hedges.

    A position of the tree has ``width ** i`` prefixes when it is i steps ahead (paper section 3.1, multi-branch). The
    target writes after every prefix up to ``depth`` steps ahead in sync, up to ``depth - 1`` in async. Drafts in flight
    hang on different prefixes, so they are at most as many as the last position has. A verdict may be asked for every
    drafted step.
    """
    if look.policy == "adaptive" and look.width > 1:
        shapes = [(deep, wide) for wide in range(1, look.width + 1) for deep in range(1, deepest(look.depth, wide) + 1)]
        return max(needed(look.replace(policy="fixed", depth=deep, width=wide), role) for deep, wide in shapes)
    sizes = [look.width**i for i in range(look.depth + 1)]
    if role == "target":
        return sum(sizes) if look.schedule == "sync" else sum(sizes[:-1])
    return sizes[-1] if role == "draft" else sum(sizes[1:])


def deepest(depth: int, width: int) -> int:
    """How far the adaptive policy looks ahead in so many versions, if it may look this far ahead in one."""
    fitting = (deep for deep in range(2, depth + 1) if width == 1 or sum(width**i for i in range(deep + 1)) <= MOST)
    return max(fitting, default=min(depth, 1))


def hedges(look: Lookahead, role: str) -> int:
    """Requests in flight that only a refusal will need. In sync nothing is begun while a verdict is awaited."""
    return max(needed(look, role), look.depth) if look.hedge and look.schedule == "async" else 0


def fits(look: Lookahead, role: str, slots: int | None, running: tuple[int, int], hedged: bool, steps: int = 1) -> bool:
    """Whether so many more steps may be in flight.

    Hedges take only what the others could never need, so that they keep nobody waiting.

    Args:
        slots: what there may be in all; None is no limit.
        running: how many there are: hedges, and others.
    """
    extra, main = running
    if hedged:
        spare = hedges(look, role)
        return extra + steps <= (spare if slots is None else min(spare, slots - needed(look, role)))
    if look.hedge and main + steps > needed(look, role):
        return False  # the window is further open than what was counted on
    return slots is None or not main or main + extra + steps <= slots


def running_requests(look: Lookahead, role: Role, answers: int) -> int:
    """Requests that a role's runtime should run at a time for so many answers at once."""
    return answers * in_flight(look, role) + SPARE


def limit(max_running_requests: int | None, kv_tokens: int | None, look: Lookahead) -> int | None:
    """Requests that a runtime can have in flight with none of them waiting; None is no limit.

    Args:
        max_running_requests: that the runtime runs at a time; None is not known.
        kv_tokens: that its KV memory holds; None is not known. A branch has at most a step of its own and the drafted
            step before it there, beside what it shares with others.
    """
    limits = [max_running_requests, None if kv_tokens is None else kv_tokens // (2 * look.max_step_tokens)]
    return min((known for known in limits if known is not None), default=None)


def priority(tree: StepTree, node: Node) -> int:
    """Of what is asked after ``node``: 9 at the accepted front, less further on, so that no two are 10 apart."""
    return max(0, PREEMPTS - 1 - tree.ahead(node) - tree.hedged(node))
