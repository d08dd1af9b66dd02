"""Seeded sampling: the same seed draws the same tokens, alone or in a batch.

SGLang drops `sampling_seed` unless it runs with --enable-deterministic-inference, which refuses a
CPU, and under speculation also then. Two hooks bring it back, on a GPU where LR_SGLANG_SEEDS=1 is
set. Every candidate token gets a uniform number hashed from (seed, place,
token id), and the draw is the token with the largest probability / -log(uniform), which has exactly
the filtered distribution (an exponential race). Nothing in it depends on the rest of the batch, on
the cache, or on the order of near-equal probabilities.

The place counts from the first token of the answer, so that two models with prompts of different
lengths draw one answer with the same numbers, and an answer that is written in several requests is
the one that a single request writes. A request says how many tokens of its prompt belong to the
answer already (`lr_sglang.sglang_api.plugin_protocol`); one that says nothing begins its answer.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lr_sglang.sglang_api.plugin_protocol import place_of

# For requests that this field lists, SGLang 0.5.23's sampler also returns the filtered tokens;
# 0.5.16 lacks the field.
CAPTURED = "sampling_mask_batch_indices"
Sampled: TypeAlias = Tensor | tuple[Tensor, Any]

FEW = 64  # most probable tokens, which the filters try first: several times as fast as sorting all
NO_SEED = torch.iinfo(torch.int64).min  # the key of a request without a seed
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def carry_seeds(info: Any, cls: type, batch: Any, *args: object, **kwargs: object) -> None:
    """After SamplingBatchInfo.from_schedule_batch: sets every request's key (`keys`) as its seed.

    The tensor is there even when no request has a seed: merging two batches would lose the seeds of
    one if the other had none.
    """
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    # SGLang gives its sampler the position of the last token that the model has read.
    starts = [
        len(request.origin_input_ids) - 1 - place_of(request.sampling_params.custom_params)
        for request in batch.reqs
    ]
    numbers = [0 if seed is None else int(seed) & torch.iinfo(torch.int64).max for seed in seeds]
    found = keys(torch.tensor(numbers, dtype=torch.int64), torch.tensor(starts, dtype=torch.int64))
    seeded = torch.tensor([seed is not None for seed in seeds], dtype=torch.bool)
    info.sampling_seed = torch.where(seeded, found, NO_SEED).to(info.temperatures.device)


def sample_with_seeds(
    plain: Callable[..., Sampled],
    sampler: Any,
    probs: Tensor,
    info: Any,
    positions: Tensor,
    simple_sampling_case: bool,
) -> Sampled:
    """Around Sampler._sample_from_probs: seeded rows by `draw`, the others by SGLang's own
    sampling.
    """
    seeds = info.sampling_seed
    info.sampling_seed = None
    try:
        seeded = None if seeds is None else seeds != NO_SEED
        if seeded is None or not bool(seeded.any()):
            return plain(sampler, probs, info, positions, simple_sampling_case)
        min_ps = info.min_ps if info.need_min_p_sampling else None
        top_ks = info.top_ks if info.need_top_k_sampling else None
        top_ps = info.top_ps if info.need_top_p_sampling else None
        drawn = draw(probs, seeds, positions, top_ks=top_ks, top_ps=top_ps, min_ps=min_ps)
        if bool(seeded.all()) and getattr(info, CAPTURED, None) is None:
            return (drawn, None) if hasattr(info, CAPTURED) else drawn
        made = plain(sampler, probs, info, positions, simple_sampling_case)
        if not isinstance(made, tuple):
            return torch.where(seeded, drawn, made)
        tokens, capture = made
        return torch.where(seeded, drawn, tokens), capture and capture._replace(
            selected_weight=None
        )
    finally:
        info.sampling_seed = seeds


def draw(
    probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    top_ks: Tensor | None = None,
    top_ps: Tensor | None = None,
    min_ps: Tensor | None = None,
) -> Tensor:
    """Draw one token per row.

    probs: [batch, vocabulary] float32, after temperature. seeds: [batch], the requests' `keys`.
    positions: [batch] integers.
    top_ks, top_ps, min_ps: [batch], or None where no row filters; the filters are SGLang's own: the
    `top_k` largest; those whose predecessors sum to at most `top_p`; those of at least `min_p`
    times the largest. Returns [batch] int32 token ids.
    """
    if top_ks is None and top_ps is None and min_ps is None:
        every = torch.arange(probs.shape[1], device=probs.device)
        weights, token_ids = probs, every.expand_as(probs)
    else:
        weights, token_ids = _filter(probs, top_ks, top_ps, min_ps)
    race = weights.to(torch.float64) / -torch.log(uniform(seeds, positions, token_ids))
    return token_ids.gather(1, race.argmax(-1, keepdim=True)).view(-1).to(torch.int32)


def _filter(
    probs: Tensor, top_ks: Tensor | None, top_ps: Tensor | None, min_ps: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The tokens that the filters keep, most probable first: weights (0 where a row keeps fewer),
    and token ids.
    """
    for most in (min(FEW, probs.shape[1]), probs.shape[1]):
        weights, token_ids = _largest(probs, most)
        keep = torch.ones_like(weights, dtype=torch.bool)
        if top_ks is not None:
            keep &= torch.arange(most, device=probs.device) < top_ks.view(-1, 1)
        if top_ps is not None:
            keep &= weights.cumsum(-1) - weights <= top_ps.view(-1, 1)
        if min_ps is not None:
            keep &= weights >= weights[:, :1] * min_ps.view(-1, 1)
        kept = keep.sum(-1, keepdim=True)
        # Complete if all kept tokens are more probable than the last of these, with which others
        # may be equal.
        if most == probs.shape[1] or bool((weights.gather(1, kept - 1) > weights[:, -1:]).all()):
            break
    width = int(kept.max())
    return (weights * keep)[:, :width], token_ids[:, :width]


def _largest(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest probabilities of every row and their token ids; of equal ones, the
    smaller id comes first.
    """
    if count == probs.shape[1]:
        weights, token_ids = probs.sort(dim=-1, descending=True, stable=True)
        return weights, token_ids
    candidates = probs.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    weights, order = probs.gather(1, candidates).sort(dim=-1, descending=True, stable=True)
    return weights, candidates.gather(1, order)


def keys(seeds: Tensor, starts: Tensor) -> Tensor:
    """The keys of requests, [batch] int64: of the seed and the position of the answer's beginning.

    `uniform` adds a position to a key, so that the same seed gives the same numbers at the same
    distance from `starts`.
    """
    mixed = _mix(seeds.to(torch.int64) + _GOLDEN) - starts.to(torch.int64) * _GOLDEN
    return torch.where(mixed == NO_SEED, NO_SEED + 1, mixed)


def uniform(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Uniform float64 numbers in (0, 1), [batch, tokens], hashed from key, position and
    token id.
    """
    key = _mix(seeds + positions.to(torch.int64) * _GOLDEN)
    bits = _mix(key.view(-1, 1) + token_ids * _GOLDEN)
    return (
        _shift(bits, 12).to(torch.float64) + 0.5
    ) * 2.0**-52  # with one bit more the largest would be rounded to 1


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finaliser; int64 arithmetic wraps around."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
