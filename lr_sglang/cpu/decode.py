"""A decode step, one new token per sequence: how to read the rows of the KV cache, and attention
over them.

A plan is the cheaper of two. Together: all queries attend over the rows of all sequences, and a
mask hides those of other sequences; a shared prefix is read once, and adjacent rows are not copied.
Padded: each sequence's rows are gathered into one rectangle, which is cheaper for sequences whose
rows are scattered over the cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lr_sglang.cpu.attention_math import additive, attend, padded_rows, round_up


@dataclass(frozen=True)
class Padded:
    """rows: [batch * width] int64. mask: [batch, 1, 1, width] float32."""

    rows: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Together:
    """rows: [width] int64, or a slice of the cache. mask: [1, 1, batch * group, width] float32."""

    rows: Tensor | slice
    mask: Tensor


DecodePlan = Padded | Together


def plan_decode(
    req_to_token: Tensor,
    requests: Tensor,
    seq_lens: Tensor,
    group: int,
    kept: bool = False,
) -> DecodePlan:
    """Plan a decode step.

    `seq_lens` [batch] includes the new token; `group` query heads share a KV head. By measurement
    a row costs about 10 + batch * group units if it is read in place, 30 more if it is gathered,
    and 28 for each sequence in a padded rectangle, or 18 if `kept` from step to step.
    """
    column = torch.arange(round_up(int(seq_lens.max())))
    visible = column < seq_lens.view(-1, 1)
    rows = padded_rows(req_to_token, requests, visible)
    batch, width = rows.shape
    padded = (18 if kept else 28) * batch * width
    # a visible row in place of padding
    own = torch.where(visible, rows, rows.gather(1, seq_lens.view(-1, 1) - 1))
    plan = plan_together(own, group, padded)
    return plan or Padded(rows.view(-1), additive(visible).view(batch, 1, 1, width))


def plan_together(own: Tensor, group: int, padded: int) -> Together | None:
    """A plan of the kind Together; None if that costs more than `padded`.

    `own` [queries, width] int64 has the rows that each query sees, in any order and with
    repetitions.
    """
    found = rows_together(own, own.shape[0] * group, padded)
    if found is None:
        return None
    rows, column, count = found
    return Together(rows, together_mask(seen(column, count), group))


def rows_together(
    own: Tensor, queries: int, padded: int
) -> tuple[Tensor | slice, Tensor, int] | None:
    """The rows that `queries` read together, the place of each of `own` among them, and their
    number.

    None if that costs more than `padded`.
    """
    width = own.shape[1]
    start = int(own.min())
    end = int(own.max()) + 1
    column = own - start
    spanned = (end - start) * (10 + queries)
    if spanned > min(padded, width * (40 + queries)):
        taken = torch.zeros(end - start, dtype=torch.bool)
        taken[column.view(-1)] = True
        used = taken.nonzero().view(-1)
        gathered = used.shape[0] * (40 + queries)
        if padded < min(spanned, gathered):
            return None
        if gathered < spanned:
            return used + start, (taken.cumsum(0) - 1)[column], used.shape[0]
    return slice(start, end), column, end - start


def attend_decode(
    plan: DecodePlan,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scale: float,
) -> Tensor:
    """query [batch, heads, dim] over caches [rows, kv_heads, dim] -> [batch, heads, dim]."""
    batch = query.shape[0]
    kv_heads = k_cache.shape[1]
    caches = (k_cache, v_cache)
    if isinstance(plan, Padded):
        keys, values = (
            cache.index_select(0, plan.rows).view(batch, -1, *cache.shape[1:]).to(query.dtype)
            for cache in caches
        )
        return attend_padded(plan, query, keys, values, scale)
    heads, dim = query.shape[1:]
    grouped = query.view(batch, kv_heads, -1, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim)
    keys, values = (
        (cache[plan.rows] if isinstance(plan.rows, slice) else cache.index_select(0, plan.rows))
        .transpose(0, 1)
        .unsqueeze(0)
        .to(query.dtype)
        for cache in caches
    )
    result = attend(grouped, keys, values, plan.mask, scale)
    return (
        result.view(kv_heads, batch, heads // kv_heads, -1)
        .transpose(0, 1)
        .reshape(batch, heads, -1)
    )


def attend_padded(
    plan: Padded,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
) -> Tensor:
    """query [batch, heads, dim] over keys and values [batch, width, kv_heads, dim] -> [batch,
    heads, dim].
    """
    batch, heads, dim = query.shape
    grouped = query.view(batch, keys.shape[2], -1, dim)
    result = attend(grouped, keys.transpose(1, 2), values.transpose(1, 2), plan.mask, scale)
    return result.reshape(batch, heads, -1)


def seen(column: Tensor, count: int) -> Tensor:
    """[queries, count] float32, added to scores: 0 at the columns of each query, -inf elsewhere."""
    return torch.full((column.shape[0], count), float("-inf")).scatter_(1, column, 0.0)


def together_mask(mask: Tensor, group: int) -> Tensor:
    """The mask [queries, count] repeated for each of a query's `group` heads, [1, 1, queries *
    group, count].
    """
    return mask.repeat_interleave(group, dim=0).view(1, 1, -1, mask.shape[1])
