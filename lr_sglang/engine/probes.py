"""What a server can do that runs already, found out by few and small requests to it.

``doctor`` asks everything; runs and the endpoint ask at start what they need: whether seeds are
honoured, and how much concurrent requests slow each other down.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.engine.prefix_reuse import RequestLog
from lr_sglang.engine.transport import Transport
from lr_sglang.errors import BadReply, Cancelled, LookaheadError
from lr_sglang.sglang_api.plugin_protocol import with_seed
from lr_sglang.steps.branch import Request

# Concurrent requests of the second measurement.
CONCURRENT_PROBES = 8
# Tokens of a prompt, or of a prefilled step.
PROBE_PROMPT = 16
# Two generation lengths, whose difference excludes the prefill.
SHORT_PROBE = 2
LONG_PROBE = 10
# Every time is the minimum of so many, because other processes can only add to it.
PROBE_ROUNDS = 2
ANY_TOKEN = 100.0  # temperature; a token layer guesses no token then, so each takes a forward pass
PROBE_TIMEOUT = 60.0  # seconds for a request

SEEDED_TOKENS = 16
SEEDED_TEMPERATURE = 2.0  # two seeds then hardly ever give the same tokens

PROMPT_GROWTH = (17, 31, 64)  # tokens by which a prompt grows, as a prefix does by steps
BEGUN_SECONDS = 1.0  # after which an answer that is not streamed is taken to be generated
ABORTED_TOKENS = 400  # of an answer that is aborted
PROBE_KEY = "doctor"  # for a router, as all branches of one answer have the same


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
        prefill: seconds of a request that prefills a few tokens after a cached prefix, and writes
            one; all other requests wait for its pass. 0 if it was not measured.
    """

    token: float
    slowdown: float
    reading: float = 0.0
    prefill: float = 0.0


def random_prompts(
    count: int, before: Sequence[int] = (), tokens: int = PROBE_PROMPT
) -> list[list[int]]:
    """Prompts of random tokens, which all models have, after the same ones."""
    return [[*before, *random.choices(range(10, 700), k=tokens)] for _ in range(count)]


async def generation_seconds(
    transport: Transport, prompts: Sequence[list[int]], tokens: int
) -> float:
    """Seconds until as many tokens have been generated after each prompt, all at once.

    Raises:
        LookaheadError: the runtime failed.
    """
    now = asyncio.get_running_loop().time
    sampling = {"max_new_tokens": tokens, "temperature": ANY_TOKEN, "ignore_eos": True}
    payloads = [{"input_ids": ids, "sampling_params": sampling} for ids in prompts]
    began = now()
    await asyncio.gather(*(transport.generate(one, Request(), PROBE_TIMEOUT) for one in payloads))
    return now() - began


async def token_seconds(
    transport: Transport, prompts: Sequence[list[int]], rounds: int = PROBE_ROUNDS
) -> float:
    """Seconds of a token of as many answers at once as there are prompts; 0 if more tokens took no
    more time. Raises as ``generation_seconds``.
    """

    async def least(tokens: int) -> float:
        return min([await generation_seconds(transport, prompts, tokens) for _ in range(rounds)])

    await generation_seconds(transport, prompts, 1)  # puts the prompts into the cache
    return max(0.0, await least(LONG_PROBE) - await least(SHORT_PROBE)) / (LONG_PROBE - SHORT_PROBE)


async def read_seconds(transport: Transport, new: int) -> float:
    """Seconds of a request that reads ``new`` tokens after a cached prefix, and writes one. Raises
    as ``generation_seconds``.
    """
    (prefix,) = random_prompts(1)
    await generation_seconds(transport, [prefix], 1)
    return min(
        [
            await generation_seconds(transport, random_prompts(1, prefix, new), 1)
            for _ in range(PROBE_ROUNDS)
        ]
    )


async def measure_costs(transport: Transport, most: int | None = None) -> Costs | None:
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
    at_once = min(CONCURRENT_PROBES, most or CONCURRENT_PROBES)
    prefix = random_prompts(1)
    alone = await token_seconds(transport, prefix)
    beside = await token_seconds(transport, random_prompts(at_once))

    async def least(new: int) -> float:
        """Of as many prompts at once with so many new tokens each."""
        asked = (random_prompts(at_once, prefix[0], new) for _ in range(PROBE_ROUNDS))
        return min([await generation_seconds(transport, prompts, 1) for prompts in asked])

    prefill = min([await generation_seconds(transport, prefix, 1) for _ in range(PROBE_ROUNDS)])
    known = await least(0)
    read = await least(PROBE_PROMPT)
    if not alone or not beside:
        return None
    # at worst requests are served one after another; prefilling a token takes at most as long as
    # decoding one
    slowdown = min(1.0, max(0.0, beside / alone - 1) / max(1, at_once - 1))
    reading = min(alone, max(0.0, read - known) / (at_once * PROBE_PROMPT))
    return Costs(alone, slowdown, reading, prefill)


async def seed_fault(transport: Transport, prompt: Sequence[int]) -> str:
    """Why equal seeds do not give equal answers on a server; empty if they do.

    Asks for five short generations at a high temperature: one seed twice, another seed, and the
    first seed again in two requests, each for half of the tokens.

    Args:
        prompt: token ids of a text.
    """

    async def ids(seed: int, before: Sequence[int] = (), tokens: int = SEEDED_TOKENS) -> list[int]:
        params: dict[str, Any] = {
            "max_new_tokens": tokens,
            "temperature": SEEDED_TEMPERATURE,
            "ignore_eos": True,
        }
        payload = {
            "input_ids": [*prompt, *before],
            "sampling_params": with_seed(params, seed, len(before)),
        }
        reply = await transport.generate(payload, Request(), PROBE_TIMEOUT)
        return list(reply["output_ids"])[:tokens]

    async def in_pieces(seed: int) -> list[int]:
        half = await ids(seed, tokens=SEEDED_TOKENS // 2)
        return half + await ids(seed, half, SEEDED_TOKENS - len(half))

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


async def measure_reuse(transport: Transport) -> float | None:
    """Tokens found in the cache over those that could be: of a prompt that grows by steps, of two
    that grow at once, and of one that goes on from an answer that was aborted. None if the server
    does not report what it had in its cache.

    Raises:
        LookaheadError: the runtime failed.
    """
    log = RequestLog()
    told: list[int | None] = []
    shareable: list[Callable[[], int]] = []

    async def ask(ids: list[int]) -> None:
        request = Request(key=PROBE_KEY)
        reply = await transport.generate(_greedy(ids, 1), request, PROBE_TIMEOUT)
        meta = _meta(reply)
        output = tuple(reply["output_ids"])
        told.append(meta.get("cached_tokens"))
        shareable.append(log.add(tuple(ids), output, meta, request.sent, time.time()))

    (prompt,) = random_prompts(1, tokens=2 * PROBE_PROMPT)
    await ask(prompt)
    for more in PROMPT_GROWTH:
        (prompt,) = random_prompts(1, prompt, more)
        await ask(prompt)
    await asyncio.gather(*(ask(one) for one in random_prompts(2, prompt)))
    (prompt,) = random_prompts(1, prompt)
    await measure_abort(transport, prompt)
    log.add(tuple(prompt), (), {"prompt_tokens": 0}, 0.0, time.time())
    (prompt,) = random_prompts(1, prompt)
    await ask(prompt)
    known = [cached for cached in told if cached is not None]
    if len(known) < len(told):
        return None
    shared = [one() for one in shareable]
    return sum(map(min, known, shared)) / sum(shared)


@dataclass(frozen=True)
class Abort:
    """How a server took an abort.

    Attributes:
        seconds: until it ended the request.
        taken: whether it did so because of the abort; else its connection was closed.
    """

    seconds: float
    taken: bool


async def measure_abort(transport: Transport, prompt: Sequence[int]) -> Abort | None:
    """Aborts a request while its answer is generated; None if the answer was complete before.

    Raises:
        LookaheadError: the runtime failed.
    """
    now = asyncio.get_running_loop().time
    request = Request(key=PROBE_KEY)
    begun = asyncio.Event()
    request.on_tokens = lambda _: begun.set()
    payload = {**_greedy(prompt, ABORTED_TOKENS), "stream": True}
    answer = asyncio.ensure_future(transport.generate(payload, request, PROBE_TIMEOUT))
    waiting = asyncio.ensure_future(begun.wait())
    await asyncio.wait(
        {answer, waiting}, timeout=BEGUN_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    waiting.cancel()
    if answer.done():
        _meta(await answer)
        return None
    began = now()
    request.cancel()
    try:
        ended = _meta(await answer).get("finish_reason") or {}
    except Cancelled:
        return Abort(now() - began, taken=False)
    return Abort(now() - began, taken=ended.get("type") == "abort")


async def gives_logprobs(transport: Transport, prompt: Sequence[int]) -> tuple[bool, bool]:
    """Whether a server gives the log-probabilities of a prompt's tokens, and those of the most
    probable ones at each place.

    Raises:
        LookaheadError: the runtime failed.
    """
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    reply = await transport.generate({**_greedy(prompt, 0), **asked}, Request(), PROBE_TIMEOUT)
    meta = _meta(reply)
    each, best = (
        [one for one in meta.get(name) or () if one and one[0] is not None]
        for name in ("input_token_logprobs", "input_top_logprobs")
    )
    return len(each) >= len(prompt) - 1, len(best) >= len(prompt) - 1


def _greedy(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": params}


def _meta(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = reply["meta_info"]
        [*map(int, reply["output_ids"])]
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"/generate: a reply without {error}") from error
    return found
