"""What a runtime's requests cost each other, measured at start: what is known of it before the first answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Transport

# Requests at once of the second measurement; tokens of a prompt or a step that is read, and of the two lengths whose
# difference is writing alone. Of every figure the least of ROUNDS counts: other processes only make it longer.
AT_ONCE, PROMPT, SHORT, LONG, ROUNDS = 8, 16, 2, 10, 2
ANY_TOKEN = 100.0  # a temperature at which a token layer guesses none, so that each token takes a pass
TIMEOUT = 60.0  # seconds, of a request


@dataclass(frozen=True)
class Costs:
    """What a request costs a runtime that serves others, too.

    Attributes:
        token: seconds of a token that is written for the only request, and not by a token layer: of a pass.
        slowdown: by how much each further request slows down the others, as a share of a token's time alone.
        reading: seconds of a token that is read after a cached prefix; no answer goes on meanwhile.
    """

    token: float
    slowdown: float
    reading: float = 0.0


async def measure(transport: Transport, most: int | None = None) -> Costs | None:
    """Writes and reads random tokens for about the time of an answer of a hundred tokens.

    A token layer accepts nothing of them, but its passes have as many rows as with text, so the slowdown is the same.
    None if more tokens took no more time, so that nothing is known.

    Args:
        most: requests that the runtime runs at a time; None is not known.

    Raises:
        LookaheadError: the runtime failed.
    """
    now, at_once = asyncio.get_running_loop().time, min(AT_ONCE, most or AT_ONCE)

    def prompts(count: int, before: Sequence[int] = ()) -> list[list[int]]:
        return [[*before, *random.choices(range(10, 700), k=PROMPT)] for _ in range(count)]

    async def seconds(asked: list[list[int]], tokens: int) -> float:
        sampling, began = {"max_new_tokens": tokens, "temperature": ANY_TOKEN, "ignore_eos": True}, now()
        payloads = ({"input_ids": ids, "sampling_params": sampling} for ids in asked)
        await asyncio.gather(*(transport.generate(payload, Request(), TIMEOUT) for payload in payloads))
        return now() - began

    async def least(asked: list[list[int]], tokens: int) -> float:
        return min([await seconds(asked, tokens) for _ in range(ROUNDS)])

    async def token(asked: list[list[int]]) -> float:
        await seconds(asked, 1)  # from now on the prompts are in the cache
        return max(0.0, await least(asked, LONG) - await least(asked, SHORT)) / (LONG - SHORT)

    prefix, many = prompts(1), prompts(at_once)
    alone, beside = await token(prefix), await token(many)
    known = await least(prefix * at_once, 1)
    read = min([await seconds(prompts(at_once, prefix[0]), 1) for _ in range(ROUNDS)])
    if not alone or not beside:
        return None
    # no request costs more than if the requests were served one after another, and reading no more than writing
    slowdown = min(1.0, max(0.0, beside / alone - 1) / max(1, at_once - 1))
    return Costs(alone, slowdown, min(alone, max(0.0, read - known) / (at_once * PROMPT)))
