"""A decode step, one new token per sequence: how to read the rows of the KV cache, and attention
over them.

A plan is the cheaper of two. Joined: all queries attend over the rows of all sequences, and a
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
class Joined:
    """rows: [width] int64, or a slice of the cache. mask: [1, 1, batch * group, width] float32."""

    rows: Tensor | slice
    mask: Tensor


DecodePlan = Padded | Joined


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
    plan = plan_joined(own, group, padded)
    return plan or Padded(rows.view(-1), additive(visible).view(batch, 1, 1, width))


def plan_joined(own: Tensor, group: int, padded: int) -> Joined | None:
    """A plan of the kind Joined; None if that costs more than `padded`.

    `own` [queries, width] int64 has the rows that each query sees, in any order and with
    repetitions.
    """
    found = joined_rows(own, own.shape[0] * group, padded)
    if found is None:
        return None
    rows, column, count = found
    return Joined(rows, joined_mask(seen(column, count), group))


def joined_rows(
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
    batch = query.shape[0] if isinstance(plan, Padded) else 1
    keys, values = (
        (cache[plan.rows] if isinstance(plan.rows, slice) else cache.index_select(0, plan.rows))
        .view(batch, -1, *cache.shape[1:])
        .to(query.dtype)
        for cache in (k_cache, v_cache)
    )
    return attend(query, keys, values, plan.mask, scale)


def seen(column: Tensor, count: int) -> Tensor:
    """[queries, count] float32, added to scores: 0 at the columns of each query, -inf elsewhere."""
    return torch.full((column.shape[0], count), float("-inf")).scatter_(1, column, 0.0)


def joined_mask(mask: Tensor, group: int) -> Tensor:
    """The mask [queries, count] repeated for each of a query's `group` heads, [1, 1, queries *
    group, count].
    """
    return mask.repeat_interleave(group, dim=0).view(1, 1, -1, mask.shape[1])
