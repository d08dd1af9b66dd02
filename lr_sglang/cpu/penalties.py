"""Penalties of tokens that the answer has already, also those that it got in earlier requests.

SGLang's penalizers count the tokens that a request generates, and not its prompt. Where an answer
is written in several requests, each says how many tokens at the end of its prompt are the answer's
(`lr_sglang.sglang_api.plugin_protocol`), and these count as generated, so that the penalties are
those of a single request.
"""

from typing import Any

import torch
from torch import Tensor

from lr_sglang.sglang_api.plugin_protocol import written_of


def written_tokens(request: Any) -> list[int]:
    """The tokens of the answer at the end of a request's prompt."""
    count = written_of(request.sampling_params.custom_params)
    return list(request.origin_input_ids[-count:]) if count else []


def count_written(info: Any, cls: type, batch: Any, *args: object, **kwargs: object) -> None:
    """After SamplingBatchInfo.from_schedule_batch: gives the tokens that the answers have already
    to SGLang's penalizers, with its own arithmetic: frequencies add up, the others are set.
    """
    ids = [torch.tensor(written_tokens(request), dtype=torch.int64) for request in batch.reqs]
    for penalizer in info.penalizer_orchestrator.penalizers.values():
        for name in ("frequency", "presence", "repetition"):
            totals = getattr(penalizer, f"cumulated_{name}_penalties", None)
            if totals is None:
                continue
            each = getattr(penalizer, f"{name}_penalties")
            for total, one, tokens in zip(totals, each, ids, strict=True):
                count = total.scatter_add_ if name == "frequency" else total.scatter_
                count(0, tokens, one.expand(len(tokens)))


def scale_penalties(logits: Tensor, scales: Tensor) -> None:
    """Instead of apply_scaling_penalties, in place: a repetition penalty makes tokens of the text
    less likely.

    SGLang compiles its own when a request first has such a penalty. That stops a server for
    seconds, and ends it where torch finds no C++ compiler.
    """
    logits.copy_(torch.where(logits < 0, logits * scales, logits / scales))
