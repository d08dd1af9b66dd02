"""Where the keys and values of a batch lie: index and mask tensors, made once per forward pass.

Every layer of a forward pass reads the same rows of the KV cache. A decode step reads the rows of all its
sequences together: those that share a prefix have it in the same rows, and often all rows lie side by side, so
that nothing is copied. Where the sequences lie too far apart for that, and for new prompts, a plan holds the
rows of every sequence, padded to one rectangle. Its width is rounded up to 16, one vector of float32: a
sequence's own numbers then fall in the same vector lanes whatever the rest of the batch is, and the zeros that
the padding adds change no sum.
"""

from dataclasses import dataclass

import torch

LANES = 16


@dataclass(frozen=True)
class DecodePlan:
    """One new token per sequence, each sequence with rows of its own.

    rows: [batch * width] int64, KV-cache row of every column (0, never written, where padded).
    mask: [batch, 1, 1, width] float32, 0 where visible, -inf elsewhere.
    """

    rows: torch.Tensor
    mask: torch.Tensor
    batch: int
    width: int


@dataclass(frozen=True)
class PooledPlan:
    """One new token per sequence, over rows that all sequences read together.

    rows: [width] int64, or a slice of the KV cache.
    mask: [1, 1, batch * group, width] float32: what each of the `group` query heads of a KV head sees.
    """

    rows: torch.Tensor | slice
    mask: torch.Tensor
    batch: int


@dataclass(frozen=True)
class ExtendPlan:
    """Several new tokens per sequence, after a prefix that is in the KV cache.

    rows: [batch * width] int64 as in DecodePlan.
    mask: [batch, 1, longest * group, width] float32; `group` query heads share a KV head and lie side by side.
    queries: [tokens] int64, row of each token among batch * longest padded ones; None where nothing is padded.
    columns: [tokens] int64, column of each token's own key among batch * width.
    """

    rows: torch.Tensor
    mask: torch.Tensor
    queries: torch.Tensor | None
    columns: torch.Tensor
    batch: int
    longest: int
    width: int


def plan_decode(
    req_to_token: torch.Tensor, requests: torch.Tensor, seq_lens: torch.Tensor, group: int, window: int
) -> DecodePlan | PooledPlan:
    """Plan a decode step.

    `seq_lens` [batch] counts the new token; `group` query heads share a KV head; `window` > 0 hides what is
    further back.
    """
    width = _round_up(int(seq_lens.max()))
    column = torch.arange(width)
    visible = column < seq_lens.view(-1, 1)
    rows = _rows(req_to_token, requests, visible)
    batch = visible.shape[0]
    if window > 0:
        visible &= column >= (seq_lens - window).view(-1, 1)
    elif pooled := _pool(rows, visible, group):
        return pooled
    return DecodePlan(rows.view(-1), _additive(visible).view(-1, 1, 1, width), batch, width)


def _pool(rows: torch.Tensor, visible: torch.Tensor, group: int) -> PooledPlan | None:
    """A plan over common rows, if that is cheaper.

    Every query then meets every row. By measurement a row costs about 10 + batch * group units where it lies,
    30 more if it is gathered, and 24 for each sequence in a padded rectangle.
    """
    batch, width = rows.shape
    queries = batch * group
    padded = 24 * batch * width
    rows = torch.where(visible, rows, rows[:, :1])  # instead of padding, a row that is seen anyway
    start, end = int(rows.min()), int(rows.max()) + 1
    column, spanned = rows - start, (end - start) * (10 + queries)
    if spanned <= min(padded, width * (40 + queries)):
        return PooledPlan(slice(start, end), _pooled_mask(column, end - start, group), batch)
    taken = torch.zeros(end - start, dtype=torch.bool)
    taken[column.view(-1)] = True
    used = taken.nonzero().view(-1)
    gathered = used.shape[0] * (40 + queries)
    if min(spanned, gathered) > padded:
        return None
    if spanned <= gathered:
        return PooledPlan(slice(start, end), _pooled_mask(column, end - start, group), batch)
    column = (taken.cumsum(0) - 1)[column]
    return PooledPlan(used + start, _pooled_mask(column, used.shape[0], group), batch)


def _pooled_mask(column: torch.Tensor, count: int, group: int) -> torch.Tensor:
    mask = torch.full((column.shape[0], count), float("-inf")).scatter_(1, column, 0.0)
    return mask.repeat_interleave(group, dim=0).view(1, 1, -1, count)


def plan_extend(
    req_to_token: torch.Tensor,
    requests: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    group: int,
    window: int,
    tree_mask: torch.Tensor | None,
) -> ExtendPlan:
    """Plan an extend step.

    `seq_lens` [batch] counts prefix and new tokens, `extend_lens` [batch] the new ones. `tree_mask`, where
    given, is every sequence's [new, new] visibility among its new tokens, flattened one after the other.

    Raises ValueError where a sequence is shorter than its new part, NotImplementedError for a tree in a
    sliding window.
    """
    extend_lens = extend_lens.to(torch.int64)
    prefix = seq_lens.to(torch.int64) - extend_lens
    if bool((prefix < 0).any()):
        raise ValueError(f"seq_lens {seq_lens.tolist()} shorter than extend_seq_lens {extend_lens.tolist()}")
    batch, longest = seq_lens.shape[0], int(extend_lens.max())
    width = _round_up(int(seq_lens.max()))
    column = torch.arange(width)
    rows = _rows(req_to_token, requests, column < seq_lens.view(-1, 1)).view(-1)

    sequence = torch.repeat_interleave(torch.arange(batch), extend_lens)
    starts = extend_lens.cumsum(0) - extend_lens
    offset = torch.arange(sequence.shape[0]) - starts[sequence]
    queries = sequence * longest + offset
    columns = sequence * width + prefix[sequence] + offset

    # A padded query row is a later position of its sequence: it sees something, so no row is all -inf.
    last = prefix.view(-1, 1, 1) + torch.arange(longest).view(1, -1, 1)
    if tree_mask is None:
        visible = column <= last
        if window > 0:
            visible &= column > last - window
    elif window > 0:
        raise NotImplementedError("extend_attention_cpu: a token tree in a sliding window")
    else:
        visible = (column < prefix.view(-1, 1, 1)).expand(batch, longest, width).contiguous()
        visible[..., 0] |= torch.arange(longest) >= extend_lens.view(-1, 1)
        per_token = extend_lens[sequence]
        token = torch.repeat_interleave(torch.arange(sequence.shape[0]), per_token)
        other = torch.arange(token.shape[0]) - (per_token.cumsum(0) - per_token)[token]
        target = queries[token] * width + prefix[sequence[token]] + other
        visible.view(-1)[target] = tree_mask[: token.shape[0]].to(torch.bool)
    mask = _additive(visible).repeat_interleave(group, dim=1).view(batch, 1, longest * group, width)
    packed = batch * longest == sequence.shape[0]
    return ExtendPlan(rows, mask, None if packed else queries, columns, batch, longest, width)


def _rows(req_to_token: torch.Tensor, requests: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    table = req_to_token[:, : used.shape[1]].index_select(0, requests)
    if table.shape[1] < used.shape[1]:  # the rounding went past the table's end
        table = torch.nn.functional.pad(table, (0, used.shape[1] - table.shape[1]))
    return (table * used).to(torch.int64)


def _additive(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def _round_up(length: int) -> int:
    return -(-length // LANES) * LANES
