"""The replies of a simulated runtime to /generate, in SGLang's format.

The log-probabilities of a scored step depend on whether it agrees (``Model.agrees``): all tokens of
the target's own version are likely; one word of a version that agrees is less likely; others are
unlikely from that word on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.programs.rate import OPENING, QUESTION
from lr_sglang.sglang_api.draws import place_of
from tests.simulated.model import TARGET, Place, Writer

DEFAULT_TOKENS = 128  # SGLang's own max_new_tokens
# Log-probabilities of a token; a greedy target writes only tokens with a probability above 1/2
# (-0.69).
LIKELY, OTHER_WORDS, UNLIKELY = -0.05, -2.0, -9.0
_VERSION = 5  # index of the word in a head at which versions differ


@dataclass(frozen=True)
class Reply:
    """A complete reply, before its time has passed.

    Attributes:
        ids: all tokens of the reply; its text lacks the last ``trimmed`` of them.
        finish: its finish_reason.
        scored: log-probabilities of the last tokens of the prompt.
    """

    ids: tuple[int, ...]
    finish: dict[str, Any]
    prompt_tokens: int
    trimmed: int = 0
    scored: tuple[float, ...] = ()


def reply(writer: Writer, role: str, payload: dict[str, Any]) -> Reply:
    """The reply of a role to a payload of /generate with ``input_ids``."""
    prompt, sampling = payload["input_ids"], payload.get("sampling_params") or {}
    words, asked = writer.words, sampling.get("max_new_tokens")
    most = DEFAULT_TOKENS if asked is None else int(asked)
    finish: dict[str, Any] = {"type": "length", "length": most}
    said = writer.judge(prompt) if role == "judge" else None
    if role == "target" and most > 0:
        said = rating(writer, prompt)
    if said is not None:
        return Reply(words.tokenizer.encode(said)[:most], finish, len(prompt))
    if sampling.get("ignore_eos") and (seed := sampling.get("sampling_seed")) is not None:
        # no answer: whether seeds are honoured is asked, and they are
        place = place_of(sampling.get("custom_params"))
        noise = (random.Random(f"{seed}/{place + n}").randrange(256) for n in range(most))
        return Reply(tuple(words.filler(bytes(noise))), finish, len(prompt))
    if most <= 0:
        start = payload.get("logprob_start_len", -1) if payload.get("return_logprob") else -1
        # as SGLang, without one for the first token
        scored = score(writer, prompt, start + 1) if start >= 0 else ()
        return Reply((), finish, len(prompt), scored=tuple(scored))
    stop, version = sampling.get("stop"), writer.model.version(role, sampling.get("sampling_seed"))
    written = writer.write(writer.place(prompt), version, most, bool(stop))
    cut = len(written.ids) >= most  # an end at the last token is reported as ``length``
    if not cut:
        finish = {"type": "stop", "matched": stop if written.finish == "delimiter" else words.eos}
    keeps = cut or sampling.get("no_stop_trim")
    return Reply(written.ids, finish, len(prompt), 0 if keeps else 1)


def body(
    writer: Writer,
    made: Reply,
    share: float = 1.0,
    cached: int | None = None,
    rid: str = "",
    logprobs: bool = False,
) -> dict[str, Any]:
    """The JSON of a reply.

    Args:
        share: share of the tokens that were written; less than 1 if it was aborted.
        cached: number of cached tokens of the prompt; None to report none.
    """
    aborted = share < 1
    ids = made.ids[: int(share * len(made.ids))] if aborted else made.ids
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": "abort", "message": "aborted"} if aborted else made.finish,
        "prompt_tokens": made.prompt_tokens,
        "completion_tokens": len(ids),
    }
    if logprobs:
        sure = writer.confidence(ids)
        meta["output_token_logprobs"] = [[sure, token, None] for token in ids]
    if made.scored and not aborted:
        meta["input_token_logprobs"] = [[one, None, None] for one in (None, *made.scored)]
    if cached is not None:
        meta["cached_tokens"] = cached
    shown = ids if aborted or not made.trimmed else ids[: -made.trimmed]
    return {"text": writer.words.text(shown), "output_ids": list(ids), "meta_info": meta}


def score(writer: Writer, prompt: Sequence[int], first: int) -> list[float]:
    """The log-probability of each token of a prompt from its ``first`` on."""
    found: list[float] = []
    for start, end in _pieces(prompt, first, writer.words.delimiter):
        # the place without the token that ends the step
        text = end - (prompt[end - 1] in (writer.words.delimiter, writer.words.eos))
        place = writer.place(prompt[:text]) if text > start else writer.place(prompt[:start])
        begun = place.offset - (text - start) if text > start else place.offset
        found += _step(writer, place, begun, prompt[start:end])
    return found


def _step(writer: Writer, place: Place, begun: int, ids: Sequence[int]) -> Iterator[float]:
    """Log-probabilities of ``ids``, which are tokens of one step from index ``begun`` on."""
    model, words = writer.model, writer.words
    own, said = (
        model.step(words, place.question, place.position, v) for v in (TARGET, place.version)
    )
    agrees = model.agrees(place.question, place.position, place.version)
    for at, token in enumerate(ids, start=begun):
        known = 0 <= at < len(said) and said[at] == token
        if not known:
            yield UNLIKELY
        elif said == own or at < _VERSION:
            yield LIKELY
        elif agrees:
            yield OTHER_WORDS if at == _VERSION else LIKELY
        else:
            yield UNLIKELY


def _pieces(prompt: Sequence[int], first: int, delimiter: int) -> Iterator[tuple[int, int]]:
    """Start and end index of the part of each step in ``prompt[first:]``."""
    start = first
    for at in range(first, len(prompt)):
        if prompt[at] == delimiter or at == len(prompt) - 1:
            yield start, at + 1
            start = at + 1


def rating(writer: Writer, prompt: Sequence[int]) -> str | None:
    """The digit for the last step, 7 to 9 if it agrees, else less; None if the prompt does not ask
    for a rating.
    """
    tokenizer = writer.words.tokenizer
    if not OPENING.endswith(tokenizer.decode(prompt[-1:])):  # true for most prompts, and fast
        return None
    if not tokenizer.decode(prompt[-len(OPENING) :]).endswith(OPENING):
        return None
    reach = len(tokenizer.encode(QUESTION)) + 3 * writer.model.longest
    heads = writer.words.find(tokenizer.decode(prompt[-reach:]))
    if not heads:
        return "0"
    head = heads[-1]
    drawn = writer.model.rated(head.question, head.position, head.version)
    agrees = writer.model.agrees(head.question, head.position, head.version)
    return str(7 + int(3 * drawn) if agrees else int(7 * drawn))
