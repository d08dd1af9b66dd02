"""A pass over a few new (possibly drafted) tokens per sequence, whose keys and values are in the
cache already.

Branches of one answer share nearly all of their prefix, so it is read once for the new tokens of
all branches.
"""

import torch
from torch import Tensor

from lr_sglang.cpu.attention_math import padded_rows, round_up
from lr_sglang.cpu.decode import Joined, joined_mask, joined_rows, plan_joined, seen

MAX_DRAFTED_TOKENS = 128


def plan_drafted(
    req_to_token: Tensor,
    requests: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    group: int,
    tree_mask: Tensor | None,
) -> Joined | None:
    """Plan the pass like a decode step in which each new token is a sequence; adjacent rows are
    then not copied.

    The arguments are those of plan_extend. None where plan_extend must be used (trees with
    different numbers of new tokens) or is cheaper (many tokens, rows that are scattered over the
    cache).
    """
    if int(extend_lens.sum()) > MAX_DRAFTED_TOKENS:
        return None
    seq_lens = seq_lens.to(torch.int64)
    extend_lens = extend_lens.to(torch.int64)
    width = round_up(int(seq_lens.max()))
    visible = torch.arange(width) < seq_lens.view(-1, 1)
    rows = padded_rows(req_to_token, requests, visible)
    padded = int((seq_lens * (28 + extend_lens * group)).sum())
    if tree_mask is None:
        return _plan_chains(
            torch.where(visible, rows, rows[:, :1]), seq_lens, extend_lens, group, padded
        )
    if int(extend_lens.min()) != int(extend_lens.max()):
        return None
    return _plan_trees(rows, seq_lens, int(extend_lens[0]), group, padded, tree_mask)


def _plan_chains(
    own: Tensor, seq_lens: Tensor, extend_lens: Tensor, group: int, padded: int
) -> Joined | None:
    """Every new token sees the rows of `own` [batch, width] up to its own; padding repeats a row
    that all see.
    """
    batch = own.shape[0]
    tokens = int(extend_lens.sum())
    found = joined_rows(own, tokens * group, padded)
    if found is None:
        return None
    rows, column, count = found
    sequence = torch.repeat_interleave(torch.arange(batch), extend_lens)
    offset = torch.arange(tokens) - (extend_lens.cumsum(0) - extend_lens)[sequence]
    mask = seen(column, count).index_select(0, sequence)
    later = (seq_lens - extend_lens)[sequence] + offset + 1
    later = later.view(-1, 1) + torch.arange(int(extend_lens.max()))
    token, place = (later < seq_lens[sequence].view(-1, 1)).nonzero(as_tuple=True)
    mask[token, column[sequence[token], later[token, place]]] = float("-inf")
    return Joined(rows, joined_mask(mask, group))


def _plan_trees(
    rows: Tensor, seq_lens: Tensor, new: int, group: int, padded: int, tree_mask: Tensor
) -> Joined | None:
    batch, width = rows.shape
    prefix = (seq_lens - new).view(-1, 1, 1)
    # the column of each new token, [batch, new, 1]
    token = prefix + torch.arange(new).view(1, -1, 1)
    tree = tree_mask[: batch * new * new].view(batch, new, new).to(torch.bool)
    visible = (torch.arange(width) < prefix).expand(batch, new, width).contiguous()
    visible.scatter_(2, token.view(batch, 1, new).expand(-1, new, -1), tree)
    # Every token sees itself, so its own row replaces the rows that it does not see.
    rows = rows.unsqueeze(1).expand(-1, new, -1)
    own = torch.where(visible, rows, rows.gather(2, token))
    return plan_joined(own.view(batch * new, width), group, padded)
