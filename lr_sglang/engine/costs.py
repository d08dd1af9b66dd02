"""How much concurrent requests slow each other down on a runtime, measured at start, before the
first answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Transport

# Concurrent requests of the second measurement; tokens of a prompt or a prefilled step; two
# generation lengths, whose difference excludes the prefill. Every time is the minimum of ROUNDS,
# because other processes can only add to it.
AT_ONCE, PROMPT, SHORT, LONG, ROUNDS = 8, 16, 2, 10, 2
ANY_TOKEN = 100.0  # temperature; a token layer guesses no token then, so each takes a forward pass
TIMEOUT = 60.0  # seconds for a request


@dataclass(frozen=True)
class Costs:
    """The time that requests take on one runtime, and that they take from concurrent ones.

    Attributes:
        token: seconds of a forward pass that decodes one token for a single request, without a
            token layer.
        slowdown: time per token that each further request adds for the others, as a share of
            ``token``.
        reading: seconds per token of a prefill after a cached prefix; all other requests wait
            meanwhile.
    """

    token: float
    slowdown: float
    reading: float = 0.0


async def measure(transport: Transport, most: int | None = None) -> Costs | None:
    """Measures by decoding and prefilling random tokens, in about the time of an answer of 100
    tokens.

    A token layer's drafts of random tokens are rejected, but its passes have as many rows as for
    text, so the slowdown is the same. Returns None if more tokens took no more time, so that no
    cost can be computed.

    Args:
        most: requests that the runtime runs at a time; None if unknown.

    Raises:
        LookaheadError: the runtime failed.
    """
    now, at_once = asyncio.get_running_loop().time, min(AT_ONCE, most or AT_ONCE)

    def prompts(count: int, before: Sequence[int] = ()) -> list[list[int]]:
        return [[*before, *random.choices(range(10, 700), k=PROMPT)] for _ in range(count)]

    async def seconds(asked: list[list[int]], tokens: int) -> float:
        sampling, began = (
            {"max_new_tokens": tokens, "temperature": ANY_TOKEN, "ignore_eos": True},
            now(),
        )
        payloads = ({"input_ids": ids, "sampling_params": sampling} for ids in asked)
        await asyncio.gather(
            *(transport.generate(payload, Request(), TIMEOUT) for payload in payloads)
        )
        return now() - began

    async def least(asked: list[list[int]], tokens: int) -> float:
        return min([await seconds(asked, tokens) for _ in range(ROUNDS)])

    async def token(asked: list[list[int]]) -> float:
        await seconds(asked, 1)  # puts the prompts into the cache
        return max(0.0, await least(asked, LONG) - await least(asked, SHORT)) / (LONG - SHORT)

    prefix, many = prompts(1), prompts(at_once)
    alone, beside = await token(prefix), await token(many)
    known = await least(prefix * at_once, 1)
    read = min([await seconds(prompts(at_once, prefix[0]), 1) for _ in range(ROUNDS)])
    if not alone or not beside:
        return None
    # at worst requests are served one after another; prefilling a token takes at most as long as
    # decoding one
    slowdown = min(1.0, max(0.0, beside / alone - 1) / max(1, at_once - 1))
    return Costs(alone, slowdown, min(alone, max(0.0, read - known) / (at_once * PROMPT)))
