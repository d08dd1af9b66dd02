"""An extend step, several new tokens per sequence: plan and attention, padded to one rectangle for
the batch.

If a long prompt would make that rectangle mostly padding, the batch is split into several.
"""

from dataclasses import dataclass

import torch

from lr_sglang.cpu.attention_math import additive, attend, padded_rows, round_up

FREE_CELLS = 1 << 18  # queries x keys: padding up to here costs less than another call


@dataclass(frozen=True)
class ExtendPlan:
    """One rectangle: several new tokens per sequence, after a prefix that is in the KV cache.

    tokens: which of the step's tokens are its sequences'.
    rows: [batch * width] int64, KV-cache row of every column (0, which is never written, for
    padding). mask: [batch, 1, longest * group, width] float32; `group` query heads share a KV head
    and lie side by side. queries: [tokens] int64, row of each token among batch * longest padded
    ones; None where nothing is padded. columns: [tokens] int64, column of each token's own key
    among batch * width.
    """

    tokens: slice
    rows: torch.Tensor
    mask: torch.Tensor
    queries: torch.Tensor | None
    columns: torch.Tensor
    batch: int
    longest: int
    width: int


def plan_extend(
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    group: int,
    tree_mask: torch.Tensor | None,
) -> tuple[ExtendPlan, ...]:
    """Plan an extend step, in order of the sequences.

    `seq_lens` [batch] counts prefix and new tokens, `extend_lens` [batch] the new ones.
    `tree_mask`, where given, is every sequence's [new, new] visibility among its new tokens,
    flattened one after the other.

    Raises ValueError where a sequence is shorter than its new part.
    """
    plans = []
    first_token = 0
    first_cell = 0
    for part in _parts(extend_lens.tolist(), seq_lens.tolist()):
        lens = extend_lens[part]
        tree = None if tree_mask is None else tree_mask[first_cell:]
        plans.append(
            _plan(req_to_token, requests[part], seq_lens[part], lens, group, tree, first_token)
        )
        first_token += int(lens.sum())
        first_cell += int((lens.long() ** 2).sum())
    return tuple(plans)


def _parts(extend_lens: list[int], seq_lens: list[int]) -> list[slice]:
    """Splits the batch into rectangles of adjacent sequences: each is small, or at most half
    padding.
    """
    parts = []
    start = 0
    longest = 0
    width = 0
    own = 0
    for i, (new, total) in enumerate(zip(extend_lens, seq_lens, strict=True)):
        longest = max(longest, new)
        width = max(width, total)
        own += new * total
        if i > start and (i + 1 - start) * longest * width > max(FREE_CELLS, 2 * own):
            parts.append(slice(start, i))
            start = i
            longest = new
            width = total
            own = new * total
    return [*parts, slice(start, len(seq_lens))]


def _plan(
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    group: int,
    tree_mask: torch.Tensor | None,
    first_token: int,
) -> ExtendPlan:
    extend_lens = extend_lens.to(torch.int64)
    prefix = seq_lens.to(torch.int64) - extend_lens
    if bool((prefix < 0).any()):
        raise ValueError(
            f"seq_lens {seq_lens.tolist()} shorter than extend_seq_lens {extend_lens.tolist()}"
        )
    batch = seq_lens.shape[0]
    longest = int(extend_lens.max())
    width = round_up(int(seq_lens.max()))
    column = torch.arange(width)
    rows = padded_rows(req_to_token, requests, column < seq_lens.view(-1, 1)).view(-1)

    sequence = torch.repeat_interleave(torch.arange(batch), extend_lens)
    starts = extend_lens.cumsum(0) - extend_lens
    offset = torch.arange(sequence.shape[0]) - starts[sequence]
    queries = sequence * longest + offset
    columns = sequence * width + prefix[sequence] + offset

    # A padded query row is a later position of its sequence: it sees something, so no row is all
    # -inf.
    last = prefix.view(-1, 1, 1) + torch.arange(longest).view(1, -1, 1)
    if tree_mask is None:
        visible = column <= last
    else:
        visible = (column < prefix.view(-1, 1, 1)).expand(batch, longest, width).contiguous()
        visible[..., 0] |= torch.arange(longest) >= extend_lens.view(-1, 1)
        per_token = extend_lens[sequence]
        token = torch.repeat_interleave(torch.arange(sequence.shape[0]), per_token)
        other = torch.arange(token.shape[0]) - (per_token.cumsum(0) - per_token)[token]
        target = queries[token] * width + prefix[sequence[token]] + other
        visible.view(-1)[target] = tree_mask[: token.shape[0]].to(torch.bool)
    mask = additive(visible).repeat_interleave(group, dim=1).view(batch, 1, longest * group, width)
    packed = batch * longest == sequence.shape[0]
    tokens = slice(first_token, first_token + sequence.shape[0])
    return ExtendPlan(
        tokens, rows, mask, None if packed else queries, columns, batch, longest, width
    )


def attend_extend(
    plan: ExtendPlan,
    query: torch.Tensor,
    new_keys: torch.Tensor | None,
    new_values: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    scale: float,
) -> None:
    """The plan's tokens of query [tokens, heads, dim], new keys and values [tokens, kv_heads, dim],
    into output.

    Without new keys and values, the caches must hold them already.
    """
    query = query[plan.tokens]
    keys, values = (
        _read(k_cache, new_keys, plan, query.dtype),
        _read(v_cache, new_values, plan, query.dtype),
    )
    if plan.queries is None:
        output[plan.tokens] = attend(query, keys, values, plan.mask, scale)
        return
    padded = query.new_zeros((plan.batch * plan.longest, *query.shape[1:]))
    padded.index_copy_(0, plan.queries, query)
    mixed = attend(padded, keys, values, plan.mask, scale)
    output[plan.tokens] = mixed.index_select(0, plan.queries)


def _read(
    cache: torch.Tensor, new: torch.Tensor | None, plan: ExtendPlan, dtype: torch.dtype
) -> torch.Tensor:
    """The cache's rows with the new tokens' own in their place, [batch, width, kv_heads, dim]."""
    gathered = cache.index_select(0, plan.rows).to(dtype)
    if new is not None:
        gathered.index_copy_(0, plan.columns, new[plan.tokens].view(-1, *cache.shape[1:]).to(dtype))
    return gathered.view(plan.batch, plan.width, *cache.shape[1:])
