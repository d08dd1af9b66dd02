"""Asks a server whether it honours seeds: its settings do not say it for every server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Transport
from lr_sglang.errors import LookaheadError
from lr_sglang.sglang_api import draws

if TYPE_CHECKING:  # a slow import, which commands need not wait for
    from lr_sglang.frontend.backend import RuntimeBackend

TOKENS = 16
TEMPERATURE = 2.0  # two seeds then hardly ever give the same TOKENS tokens
TIMEOUT = 60.0  # seconds for a request


async def seed_fault(transport: Transport, prompt: Sequence[int]) -> str:
    """Why equal seeds do not give equal answers on a server; empty if they do.

    Asks for five short generations at a high temperature: one seed twice, another seed, and the
    first seed again in two requests, each for half of the tokens.

    Args:
        prompt: token ids of a text.
    """

    async def ids(seed: int, before: Sequence[int] = (), tokens: int = TOKENS) -> list[int]:
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
        return list(reply["output_ids"])[:tokens]

    async def in_pieces(seed: int) -> list[int]:
        half = await ids(seed, tokens=TOKENS // 2)
        return half + await ids(seed, half, TOKENS - len(half))

    try:
        whole, again, other, pieces = await asyncio.gather(ids(1), ids(1), ids(2), in_pieces(1))
    except (LookaheadError, LookupError, TypeError) as error:
        return f"the server could not be asked ({error})"
    if whole != again:
        return "one seed gives different texts"
    if whole == other:
        return "two seeds give the same text"
    if whole != pieces:
        return "with one seed, a text in two requests is not the one of a single request"
    return ""


def without_seeds(roles: Mapping[str, RuntimeBackend]) -> Iterator[str]:
    """What follows for the answers of these runtimes, for each fault that ``seed_fault`` found."""
    for fault in dict.fromkeys(one.seed_fault for one in roles.values() if one.seed_fault):
        names = " and ".join(role for role, one in roles.items() if one.seed_fault == fault)
        yield (
            f"{names}: seeds have no effect there: {fault}. None is sent, so the same seed does "
            "not give the same answer again, draft and target share no draws, and a lossless "
            "answer is another draw from the target's distribution"
        )
