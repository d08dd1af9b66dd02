"""Seeded verification on a GPU: a seed gives the same tokens as without speculation.

SGLang draws coins under speculation. Here a token is drawn after every node of the tree of guesses,
as plain decoding would draw it if that node were the end of the text, and the tree is walked along
the drawn tokens. So a guess decides how many tokens a pass gives, never which.
(`lr_sglang.cpu.speculation.sampling` does the same on a CPU, where SGLang has no sampling to start
from.)

Penalties and `min_new_tokens` follow the tokens before each node, which SGLang counts for the last
one only: such requests keep SGLang's own verification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lr_sglang.plugin.seeds import draw
from lr_sglang.sglang_api.plugin_protocol import RELAXED

Verified = tuple[Tensor, Tensor, Tensor]
GREEDY = 1  # SGLang's top_k of a request with temperature 0


def verify_with_seeds(
    plain: Callable[..., Verified],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    *args: Any,
    **kwargs: Any,
) -> Verified:
    """Around eagle_sample: what SGLang verifies, with the rows of seeded requests verified anew.

    Returns int32 tensors: the tokens, one for each node [batch * n]; the number of tokens that each
    request got [batch]; and the nodes of these tokens [batch, depth], -1 behind the last.
    """
    if batch.forward_mode.is_idle() or batch.sampling_info.sampling_seed is None:
        return plain(verify_input, batch, logits_output, *args, **kwargs)
    info = batch.sampling_info
    seeds = info.sampling_seed
    info.sampling_seed = None  # SGLang would take the keys for seeds of its own
    try:
        verified = plain(verify_input, batch, logits_output, *args, **kwargs)
    finally:
        info.sampling_seed = seeds
    rows = [row for row, request in enumerate(batch.reqs) if draws_with_seed(request)]
    if not rows:
        return verified
    # SGLang has applied logit biases and grammars to these in place.
    logits = logits_output.next_token_logits
    mine = _walk(verify_input, _drawn(verify_input, batch, logits, seeds, rows), verified)
    chosen = torch.zeros(len(batch.reqs), dtype=torch.bool)
    chosen[rows] = True
    chosen = chosen.to(logits.device)
    of_nodes = chosen.repeat_interleave(verify_input.draft_token_num)
    tokens = torch.where(of_nodes, mine[0], verified[0])
    counts = torch.where(chosen, mine[1], verified[1])
    nodes = torch.where(chosen.view(-1, 1), mine[2], verified[2])
    _agree(tokens, counts, nodes)
    return tokens, counts, nodes


def draws_with_seed(request: Any) -> bool:
    """Whether a request samples with a seed, from a distribution that is the same in a tree."""
    params = request.sampling_params
    return (
        params.sampling_seed is not None
        and params.top_k != GREEDY
        and all(getattr(params, name) == nothing for name, nothing in RELAXED.items())
    )


def _drawn(verify_input: Any, batch: Any, logits: Tensor, seeds: Tensor, rows: list[int]) -> Tensor:
    """One token for every node [batch, n] int64; of the requests in ``rows`` they are drawn."""
    info, n = batch.sampling_info, verify_input.draft_token_num
    at = torch.tensor(rows, device=logits.device)
    found = logits.view(-1, n, logits.shape[-1])[at].float()
    probs = torch.softmax(found / info.temperatures[at].view(-1, 1, 1), dim=-1).flatten(0, 1)
    # The batch's own flags include requests that are not drawn here; these need no look at the GPU.
    params = [batch.reqs[row].sampling_params for row in rows]

    def each(values: Tensor, needed: bool) -> Tensor | None:
        return values[at].repeat_interleave(n, dim=0) if needed else None

    tokens = draw(
        probs,
        seeds[at].repeat_interleave(n),
        verify_input.positions.view(-1, n)[at].flatten(),
        top_ks=each(info.top_ks, any(one.top_k < logits.shape[-1] for one in params)),
        top_ps=each(info.top_ps, any(one.top_p < 1 for one in params)),
        min_ps=each(info.min_ps, any(one.min_p > 0 for one in params)),
    )
    wanted = verify_input.draft_token.view(-1, n).to(torch.int64, copy=True)
    wanted[at] = tokens.to(torch.int64).view(-1, n)
    return wanted


def _walk(verify_input: Any, wanted: Tensor, like: Verified) -> Verified:
    """Walks each tree along the wanted tokens, by SGLang's own operator."""
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_func

    n = verify_input.draft_token_num
    tokens, nodes, right = verify_tree_greedy_func(
        predicts=torch.zeros_like(like[0]),
        accept_index=torch.full_like(like[2], -1),
        accept_token_num=torch.empty_like(like[1]),
        candidates=verify_input.draft_token.view(-1, n),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=wanted,
        topk=verify_input.tree_topk,
    )
    return tokens, right + 1, nodes


def _agree(*verified: Tensor) -> None:
    """Gives all ranks of tensor parallelism the tokens of the first, as SGLang does: probabilities
    may differ by rounding, and ranks that accept another number of tokens wait for each other.
    """
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if group.world_size > 1:
        for one in verified:
            group.broadcast(one, src=0)
