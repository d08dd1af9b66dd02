"""Whether a server honours seeds: asked of it, because its settings do not say it for all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Transport
from lr_sglang.sglang_api import draws

TOKENS, PROMPT = 16, 8
# So high that two draws are hardly ever the same token.
TEMPERATURE = 2.0
TIMEOUT = 60.0  # seconds for a request


async def fault(transport: Transport) -> str:
    """Why equal seeds do not give equal answers on a server; empty if they do.

    Four short generations at a high temperature: one seed twice, another seed, and the first seed
    again in two requests, each of half of the tokens.

    Raises:
        LookaheadError: the server failed.
    """
    prompt = random.choices(range(10, 700), k=PROMPT)

    async def ids(seed: int, before: list[int], tokens: int) -> list[int]:
        params: dict[str, Any] = {
            "max_new_tokens": tokens,
            "temperature": TEMPERATURE,
            "ignore_eos": True,
        }
        payload = {
            "input_ids": [*prompt, *before],
            "sampling_params": draws.seeded(params, seed, len(before)),
        }
        reply = await transport.generate(payload, Request(), TIMEOUT)
        return list(reply["output_ids"])

    async def in_pieces(seed: int) -> list[int]:
        half = (await ids(seed, [], TOKENS // 2))[: TOKENS // 2]
        return [*half, *await ids(seed, half, TOKENS - len(half))]

    whole, again, other, pieces = await asyncio.gather(
        ids(1, [], TOKENS), ids(1, [], TOKENS), ids(2, [], TOKENS), in_pieces(1)
    )
    if whole[:TOKENS] != again[:TOKENS]:
        return "one seed gives different tokens"
    if whole[:TOKENS] == other[:TOKENS]:
        return "different seeds give the same tokens"
    if whole[:TOKENS] != pieces[:TOKENS]:
        return "an answer in several requests is not the one of a single request"
    return ""
