"""The replies of a simulated runtime to /generate, in SGLang's format. Every token of a scored prompt
is likely.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from lr_sglang.sglang_api.draws import place_of
from tests.simulated.model import Writer

DEFAULT_TOKENS = 128  # SGLang's own max_new_tokens
LIKELY = -0.05  # log-probability of a token


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
    if role == "judge":
        said = words.tokenizer.encode(writer.judge(prompt))
        return Reply(said[:most], finish, len(prompt))
    if sampling.get("ignore_eos") and (seed := sampling.get("sampling_seed")) is not None:
        # no answer: whether seeds are honoured is asked, and they are
        place = place_of(sampling.get("custom_params"))
        noise = (random.Random(f"{seed}/{place + n}").randrange(256) for n in range(most))
        return Reply(tuple(words.filler(bytes(noise))), finish, len(prompt))
    if most <= 0:
        start = payload.get("logprob_start_len", -1) if payload.get("return_logprob") else -1
        # as SGLang, without one for the first token
        scored = (LIKELY,) * (len(prompt) - start - 1) if start >= 0 else ()
        return Reply((), finish, len(prompt), scored=scored)
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
    rid: str = "",
    logprobs: bool = False,
) -> dict[str, Any]:
    """The JSON of a reply.

    Args:
        share: share of the tokens that were written; less than 1 if it was aborted.
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
        rows = [[sure, token, None] for token in ids]
        meta |= {"output_token_logprobs": rows, "output_top_logprobs": [[one] for one in rows]}
    if made.scored and not aborted:
        meta["input_token_logprobs"] = [[one, None, None] for one in (None, *made.scored)]
    shown = ids if aborted or not made.trimmed else ids[: -made.trimmed]
    return {"text": writer.words.text(shown), "output_ids": list(ids), "meta_info": meta}
