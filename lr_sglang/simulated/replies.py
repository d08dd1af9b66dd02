"""What a simulated runtime answers to /generate, in the form of SGLang's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_sglang.simulated import scores
from lr_sglang.simulated.model import Writer

MARK = {"simulated": True}  # in meta_info and server_info
DEFAULT_TOKENS = 128  # SGLang's own max_new_tokens


@dataclass(frozen=True)
class Reply:
    """An answer that is still to take its time.

    Attributes:
        ids: all tokens that it will have; its text leaves out ``trimmed`` of them at the end.
        finish: its finish_reason then.
        scored: log-probabilities of the last tokens of the prompt.
    """

    ids: tuple[int, ...]
    finish: dict[str, Any]
    prompt_tokens: int
    trimmed: int = 0
    scored: tuple[float, ...] = ()


def reply(writer: Writer, role: str, payload: dict[str, Any]) -> Reply:
    """The answer of a role to a payload of /generate with ``input_ids``."""
    prompt, sampling = payload["input_ids"], payload.get("sampling_params") or {}
    words, asked = writer.words, sampling.get("max_new_tokens")
    most = DEFAULT_TOKENS if asked is None else int(asked)
    finish: dict[str, Any] = {"type": "length", "length": most}
    said = writer.judge(prompt) if role == "judge" else None
    if role == "target" and most > 0:
        said = scores.rating(writer, prompt)
    if said is not None:
        return Reply(words.tokenizer.encode(said)[:most], finish, len(prompt))
    if most <= 0:
        start = payload.get("logprob_start_len", -1) if payload.get("return_logprob") else -1
        # as SGLang's: none for the first that is asked about
        scored = scores.score(writer, prompt, start + 1) if start >= 0 else ()
        return Reply((), finish, len(prompt), scored=tuple(scored))
    stop, version = sampling.get("stop"), writer.model.version(role, sampling.get("sampling_seed"))
    written = writer.reported(writer.write(writer.place(prompt), version, most, bool(stop)), most)
    if written.finish != "length":
        finish = {"type": "stop", "matched": stop if written.finish == "delimiter" else words.eos}
    keeps = written.finish == "length" or sampling.get("no_stop_trim")
    return Reply(written.ids, finish, len(prompt), 0 if keeps else 1)


def body(
    writer: Writer, made: Reply, share: float = 1.0, cached: int | None = None, rid: str = "", logprobs: bool = False
) -> dict[str, Any]:
    """The JSON of an answer.

    Args:
        share: of its tokens that are written; less than 1 if it is aborted.
        cached: tokens of the prompt that are in the cache, if that is known.
    """
    aborted = share < 1
    ids = made.ids[: int(share * len(made.ids))] if aborted else made.ids
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": "abort", "message": "aborted"} if aborted else made.finish,
        "prompt_tokens": made.prompt_tokens,
        "completion_tokens": len(ids),
        **MARK,
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
