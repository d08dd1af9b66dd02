"""Sampling under speculation: every token is one draw from the target's distribution, independent
of the draft.

Without a GPU, SGLang verifies drafts against the target's most probable tokens, at any temperature.
Here the target draws a token after every node of the draft tree, as if that node were the end of
the text, and the tree is walked along the drawn tokens: a drafted token is kept if it is the drawn
one. So the draft decides how many tokens a step yields, never which. A request's seed gives the
same tokens as without speculation, because a seeded draw depends on nothing but the seed, the place
in the text and the probabilities (`lr_sglang.plugin.seeds`).

Penalties and `min_new_tokens` depend on the previous tokens. SGLang counts only the last token of a
step, and gives all nodes of a tree the same penalties; here every node has those of its own text.
"""

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lr_sglang.cpu.penalties import scale_penalties, written_tokens
from lr_sglang.plugin.seeds import CAPTURED, Sampled

# SGLang's Sampler._sample_from_probs: (sampler, probabilities, sampling info, positions, no filters
# at all) -> tokens.
SampleTokens = Callable[[Any, Tensor, Any, Tensor, bool], Sampled]
VerifiedTrees = tuple[Tensor, Tensor, Tensor]

_PER_REQUEST = ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed")


def sample_and_verify(
    plain: Callable[..., VerifiedTrees],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> VerifiedTrees:
    """Around eagle_sample: trees of requests that sample or have penalties by `verify`, the others
    by SGLang.

    mask: the tokens that a grammar allows after every node: a tensor, or an object that applies it
    (0.5.23).
    """
    greedy = batch.forward_mode.is_idle() or batch.sampling_info.is_all_greedy
    if "SGLANG_SIMULATE_ACC_LEN" in os.environ:  # SGLang overwrites what was verified
        return plain(verify_input, batch, logits_output, mask, *args, **kwargs)
    if greedy and not any(_has_penalties(request) for request in batch.reqs):
        return plain(verify_input, batch, logits_output, mask, *args, **kwargs)
    from sglang.srt.layers.sampler import Sampler

    return verify_trees(
        verify_input, batch, logits_output.next_token_logits, mask, Sampler._sample_from_probs
    )


def refuse_processors(result: None, server_args: Any) -> None:
    """After the settings of speculation were read: raise ValueError for a setting that our
    verification ignores.
    """
    if server_args.speculative_algorithm and server_args.enable_custom_logit_processor:
        raise ValueError(
            "--enable-custom-logit-processor has no effect on drafted tokens: SGLang does not "
            "call the processors when "
            "it verifies. Leave it or --speculative-algorithm out."
        )


def verify_trees(
    verify_input: Any, batch: Any, logits: Tensor, mask: Any, sample: SampleTokens
) -> VerifiedTrees:
    """Draw a token for every node, and walk the trees of `n` nodes each with them.

    logits: [batch * n, vocabulary], the target's after every node; penalties, biases and masks are
    applied in place, the temperature is not (SGLang computes log probabilities from them
    afterwards). mask: as above.

    Returns int32 tensors: the tokens [batch * n], one per node; the number of tokens that each
    sequence got [batch]; and the nodes of these tokens [batch, depth], -1 behind the last.
    """
    n = verify_input.draft_token_num
    info = batch.sampling_info
    candidates = verify_input.draft_token.view(-1, n)
    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    penalise(logits, batch.reqs, candidates, *links)
    if info.logit_bias is not None:
        logits.add_(info.logit_bias.repeat_interleave(n, dim=0))
    if isinstance(mask, Tensor):
        verify_input.grammar.apply_vocab_mask(logits=logits, vocab_mask=mask)
    elif mask is not None:
        mask.apply(logits)
    drawn = draw_nodes(logits, info, verify_input.positions, sample).view(-1, n)
    tokens = torch.zeros(candidates.numel(), dtype=torch.int32)
    nodes = torch.full((len(candidates), verify_input.max_tree_depth), -1, dtype=torch.int32)
    kept = torch.empty(len(candidates), dtype=torch.int32)
    torch.ops.sgl_kernel.verify_tree_greedy_cpu(
        tokens, nodes, kept, candidates, verify_input.retrieve_index, *links, drawn
    )
    return tokens, kept + 1, nodes


def draw_nodes(logits: Tensor, info: Any, positions: Tensor, sample: SampleTokens) -> Tensor:
    """One token for every node, in one call of `sample` for those of all requests that are not
    greedy.

    logits: [batch * n, vocabulary]. positions: [batch * n], every node's place in its text, from 0;
    without speculation SGLang gives its sampler the same number, that of the last token that the
    model has read. Returns [batch * n] int64 token ids.
    """
    n = len(logits) // len(info.top_ks)
    free = info.top_ks != 1  # top-k 1 is how SGLang says greedy
    rows = None if bool(free.all()) else free.repeat_interleave(n).nonzero().view(-1)
    nodes = copy.copy(info)
    if hasattr(info, CAPTURED):
        setattr(nodes, CAPTURED, None)
    for name in _PER_REQUEST:
        of_requests = getattr(info, name)
        if of_requests is not None:
            setattr(nodes, name, of_requests[free].repeat_interleave(n, dim=0))
    # The batch's own flags include greedy requests, and requests that have ended.
    nodes.need_top_k_sampling = bool((nodes.top_ks < logits.shape[1]).any())
    nodes.need_top_p_sampling = bool((nodes.top_ps != 1).any())
    nodes.need_min_p_sampling = bool((nodes.min_ps > 0).any())
    no_filter = not (
        nodes.need_top_k_sampling or nodes.need_top_p_sampling or nodes.need_min_p_sampling
    )
    if rows is None:
        probs = torch.softmax(logits / nodes.temperatures, dim=-1)
        return _tokens(sample(None, probs, nodes, positions, no_filter))
    tokens = logits.argmax(-1)
    if len(rows):
        probs = torch.softmax(logits[rows] / nodes.temperatures, dim=-1)
        tokens[rows] = _tokens(sample(None, probs, nodes, positions[rows], no_filter))
    return tokens


def _tokens(sampled: Sampled) -> Tensor:
    return (sampled[0] if isinstance(sampled, tuple) else sampled).to(torch.int64)


def penalise(
    logits: Tensor,
    requests: list[Any],
    candidates: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
) -> None:
    """Frequency, presence and repetition penalties and `min_new_tokens`, in place, for every node's
    own text.

    logits: [batch * n, vocabulary]. candidates and the links between nodes: [batch, n]. Only
    tokens of the answer count, as in SGLang's penalizers; a request's last token is the root of its
    tree. Added penalties come before multiplied ones, as in SGLang's own speculation.
    """
    n = candidates.shape[1]
    for i, request in enumerate(requests):
        if _has_penalties(request):
            texts = _texts(
                candidates[i].tolist(), first_child[i].tolist(), next_sibling[i].tolist()
            )
            _penalise_tree(logits[i * n : (i + 1) * n], request, texts)


def _has_penalties(request: Any) -> bool:
    params = request.sampling_params
    return bool(
        params.frequency_penalty
        or params.presence_penalty
        or params.repetition_penalty != 1
        or params.min_new_tokens  # also once it is reached: SGLang would still forbid the end
    )


def _texts(tokens: list[int], first_child: list[int], next_sibling: list[int]) -> list[list[int]]:
    """The tokens below the root on the way to every node, its own included; empty for a node that
    is not linked.
    """
    texts: list[list[int]] = [[] for _ in tokens]
    waiting = [0]
    while waiting:
        node = waiting.pop()
        child = first_child[node]
        while child != -1:
            texts[child] = [*texts[node], tokens[child]]
            waiting.append(child)
            child = next_sibling[child]
    return texts


def _penalise_tree(logits: Tensor, request: Any, texts: list[list[int]]) -> None:
    """Subtract the request's penalties from one tree's logits [n, vocabulary], and forbid ends that
    come too early; texts[node] are the drafted tokens up to a node.
    """
    params = request.sampling_params
    answer = [*written_tokens(request), *request.output_ids]
    counts = torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=logits.shape[1])
    counts = counts.repeat(len(texts), 1)
    for node, text in enumerate(texts):
        for token in text:
            counts[node, token] += 1
    logits.sub_(counts * params.frequency_penalty + (counts > 0) * params.presence_penalty)
    short = [
        node
        for node, text in enumerate(texts)
        if len(request.output_ids) + len(text) < params.min_new_tokens
    ]
    if short:
        ends = {request.tokenizer.eos_token_id}
        ends |= params.stop_token_ids or set()
        ends |= request.tokenizer.additional_stop_token_ids or set()
        ends |= getattr(request, "eos_token_ids", None) or set()  # of the model's own configuration

        logits[torch.tensor(short).view(-1, 1), torch.tensor(sorted(ends))] = float("-inf")
    if params.repetition_penalty != 1:
        scale_penalties(logits, torch.where(counts > 0, params.repetition_penalty, 1.0))
