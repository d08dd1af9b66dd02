"""A pass over a few new tokens per sequence, as for drafted ones, whose keys and values are in the cache already."""

import torch
from torch import Tensor

from lr_sglang.cpu.attention_math import padded_rows, round_up
from lr_sglang.cpu.decode import Together, plan_together

MAX_TOKENS = 64


def plan_drafted(
    req_to_token: Tensor, requests: Tensor, seq_lens: Tensor, extend_lens: Tensor, group: int, tree_mask: Tensor | None
) -> Together | None:
    """Plan it as a decode step of as many sequences: nothing is copied where their rows lie side by side.

    The arguments are those of plan_extend. None where that does better, or cannot be done: sequences with
    different numbers of new tokens, many tokens, rows that are scattered over the cache.
    """
    lengths, batch = extend_lens.tolist(), extend_lens.shape[0]
    new = lengths[0]
    if new * batch > MAX_TOKENS or min(lengths) != max(lengths):
        return None
    width = round_up(int(seq_lens.max()))
    column = torch.arange(width)
    rows = padded_rows(req_to_token, requests, column < seq_lens.view(-1, 1)).unsqueeze(1)
    prefix = (seq_lens - new).view(-1, 1, 1)
    token = prefix + torch.arange(new).view(1, -1, 1)  # the column of each new token, [batch, new, 1]
    if tree_mask is None:
        visible = column <= token
    else:
        tree = tree_mask[: batch * new * new].view(batch, new, new).to(torch.bool)
        visible = (column < prefix).expand(batch, new, width).contiguous()
        visible.scatter_(2, token.view(batch, 1, new).expand(-1, new, -1), tree)
    # Every token sees itself. Its own row stands wherever it sees nothing.
    own = torch.where(visible, rows, rows.expand(-1, new, -1).gather(2, token))
    return plan_together(own.view(batch * new, width), group, batch * width * (28 + new * group))
