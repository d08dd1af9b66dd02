"""How many requests a policy can have in flight, for one answer and for a runtime."""

from __future__ import annotations

from lr_sglang.config import Lookahead, Role

# Slots for requests that were cancelled and have not left the runtime yet.
SPARE = 2
# The maximum number of prefixes in a tree of width > 1 under the adaptive policy.
MAX_NODES = 64


def in_flight(look: Lookahead, role: Role) -> int:
    """The maximum of one answer's concurrent requests to a role.

    There are ``width ** i`` prefixes that are i steps ahead (paper section 3.1, multi-branch). The
    target writes after each of them up to ``depth`` steps ahead in sync, ``depth - 1`` in async;
    drafts in flight follow different ones. A verdict may be asked for every drafted step.
    """
    if look.policy == "adaptive" and look.width > 1:
        shapes = [
            (deep, wide)
            for wide in range(1, look.width + 1)
            for deep in range(1, deepest(look.depth, wide) + 1)
        ]
        return max(
            in_flight(look.replace(policy="fixed", depth=deep, width=wide), role)
            for deep, wide in shapes
        )
    sizes = [look.width**i for i in range(look.depth + 1)]
    if role == "target":
        return sum(sizes) if look.schedule == "sync" else sum(sizes[:-1])
    return sizes[-1] if role == "draft" else sum(sizes[1:])


def deepest(depth: int, width: int) -> int:
    """The largest depth of the adaptive policy at this width; ``depth`` is its limit at width 1."""
    fitting = (
        deep
        for deep in range(2, depth + 1)
        if width == 1 or sum(width**i for i in range(deep + 1)) <= MAX_NODES
    )
    return max(fitting, default=min(depth, 1))


def running_requests(look: Lookahead, role: Role, answers: int) -> int:
    """Requests that a role's runtime should run at a time for ``answers`` concurrent answers."""
    return answers * in_flight(look, role) + SPARE


def limit(max_running_requests: int | None, kv_tokens: int | None, look: Lookahead) -> int | None:
    """Requests that a runtime can have in flight without a queue; None if there is no known limit.

    Args:
        max_running_requests: requests that the runtime runs at a time; None if unknown.
        kv_tokens: tokens that its KV cache holds; None if unknown. Besides the prefix that it
            shares, a branch occupies at most its own step and the drafted step before it.
    """
    limits = [
        max_running_requests,
        None if kv_tokens is None else kv_tokens // (2 * look.max_step_tokens),
    ]
    return min((known for known in limits if known is not None), default=None)
