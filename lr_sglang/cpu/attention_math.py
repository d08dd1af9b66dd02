"""Attention over gathered keys and values, and helpers that all plans use."""

import torch
import torch.nn.functional as F

LANES = 16


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One batch of attention, with as many queries for each of its sequences; query heads that
    share a KV head are rows of it.

    Args:
        query: [batch * queries, heads, dim].
        keys, values: [batch, width, kv_heads, dim], in any layout.
        mask: float32, added to the scores; broadcast to [batch, 1, queries * group, width].

    Returns:
        [batch * queries, heads, dim].
    """
    tokens, heads, dim = query.shape
    batch, _, kv_heads, _ = keys.shape
    rows = query.view(batch, -1, kv_heads, heads // kv_heads, dim).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        rows.reshape(batch, kv_heads, -1, dim),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask.to(query.dtype),
        scale=scale,
    )
    mixed = mixed.view(batch, kv_heads, tokens // batch, heads // kv_heads, -1).transpose(1, 2)
    return mixed.reshape(tokens, heads, -1)


def additive(visible: torch.Tensor) -> torch.Tensor:
    """A bool mask as float32: 0 where visible, -inf elsewhere."""
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def padded_rows(
    req_to_token: torch.Tensor, requests: torch.Tensor, used: torch.Tensor
) -> torch.Tensor:
    """The KV-cache rows of a batch, [batch, width] int64; 0, which is never written, where not
    `used`.
    """
    table = req_to_token[:, : used.shape[1]].index_select(0, requests)
    if table.shape[1] < used.shape[1]:  # rounded up past the table's end
        table = F.pad(table, (0, used.shape[1] - table.shape[1]))
    return (table * used).to(torch.int64)


def round_up(length: int) -> int:
    """The width of a padded batch: a multiple of one vector of float32.

    A sequence's own numbers then fall in the same vector lanes for every batch, and the zeros of
    the padding change no sum. The only difference left is the rounding of matrix products of
    different shapes.
    """
    return -(-length // LANES) * LANES
