"""The operators that build trees of drafted tokens.

A tree has `n` nodes, parents before their children; node 0 is the last accepted token. Nodes are
numbered through the batch: node i of sequence b is token b * n + i of the step. `retrive_index`
[batch, n] holds that number, `retrive_next_token` a node's first child and `retrive_next_sibling`
the next node with the same parent, numbered within the tree, or -1. Trees have few nodes, so lists
are faster than tensors here.

Names and arguments are those of SGLang's calls, misspellings included.
"""

from functools import lru_cache

import torch
from torch import Tensor

FULL_MASK = 0
QLEN_ONLY = 1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Trees from the drafted tokens that were selected.

    A draft step continues `topk` tokens by `topk` each. All proposed tokens are numbered in order:
    `selected_index` [batch, n - 1] has the numbers of those that became nodes 1 and up, rising.
    Number k continues the token with the number `parent_list[b, k // topk]`, or the root if k //
    topk is 0. A node whose parent was not selected (rounding can make the two equally likely) is
    not linked.

    Written: the links (see above); `positions` [batch * n], how deep a node lies below
    `verified_seq_len` [batch]; `tree_mask`, flat: which nodes each node sees, [n, n] per sequence,
    or behind the tokens before them, [n, verified + n], where `tree_mask_mode` is FULL_MASK.

    Raises NotImplementedError for another `tree_mask_mode`.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(
            f"build_tree_kernel_efficient_cpu: tree_mask_mode {tree_mask_mode}"
        )
    n = draft_token_num
    batch = verified_seq_len.shape[0]
    if topk == 1 and depth >= n - 1:
        links, levels, visible = _chain(n)
        visible = visible.expand(batch, n, n)
    else:
        parents = [
            _parents(proposals, selected, topk)
            for proposals, selected in zip(
                parent_list.tolist(), selected_index.tolist(), strict=True
            )
        ]
        trees = [_levels_and_visible(one) for one in parents]
        levels = torch.tensor([level for level, _ in trees])
        visible = torch.tensor([rows for _, rows in trees])
        links = torch.tensor([_links(one) for one in parents]).transpose(0, 1)
    positions.copy_((verified_seq_len.view(-1, 1) + levels).view(-1))
    retrive_index.copy_(torch.arange(batch * n).view(batch, n))
    retrive_next_token.copy_(links[0])
    retrive_next_sibling.copy_(links[1])
    if tree_mask_mode == QLEN_ONLY:
        tree_mask[: batch * n * n] = visible.reshape(-1)
        return
    start = 0
    for length, rows in zip(verified_seq_len.tolist(), visible, strict=True):
        width = length + n
        tree_mask[start : start + n * width].view(n, width)[:, length:] = rows
        start += n * width


def reconstruct_indices_from_tree_mask_cpu(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Links and positions from the visibility of nodes: `tree_mask`, flat, is [n, n] per sequence.

    A node's parent is the last node before it that it sees; a node that sees no other is not
    linked. Writes `positions` [batch * n] and the three tables of links [batch, n].
    """
    n = draft_token_num
    earlier = torch.tril(tree_mask.view(batch_size, n, n).to(torch.int64), -1)
    parents = (earlier * torch.arange(1, n + 1)).amax(-1) - 1
    links = torch.tensor([_links(one) for one in parents.tolist()]).transpose(0, 1)
    positions.copy_((earlier.sum(-1) + verified_seq_len.view(-1, 1)).view(-1))
    retrive_index.copy_(torch.arange(batch_size * n).view(batch_size, n))
    retrive_next_token.copy_(links[0])
    retrive_next_sibling.copy_(links[1])


@lru_cache(maxsize=8)
def _chain(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tree without branches: first children and siblings [2, n], levels [n], what is visible [n,
    n].
    """
    parents = list(range(-1, n - 1))
    levels, visible = _levels_and_visible(parents)
    return torch.tensor(_links(parents)), torch.tensor(levels), torch.tensor(visible)


def _parents(proposals: list[int], selected: list[int], topk: int) -> list[int]:
    """Every node's parent; -1 for the root and for a node whose parent is not in the tree."""
    nodes = {number: node for node, number in reversed([*enumerate(selected, 1)])}
    groups = (number // topk for number in selected)
    return [-1, *(nodes.get(proposals[group], -1) if group else 0 for group in groups)]


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """Every node's first child and next sibling, -1 where there is none."""
    children = [-1] * len(parents)
    siblings = [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            siblings[node] = children[parent]
            children[parent] = node
    return children, siblings


def _levels_and_visible(parents: list[int]) -> tuple[list[int], list[list[bool]]]:
    """How deep every node lies, and which nodes it sees: the root, those on the way to it, and
    itself.
    """
    levels: list[int] = []
    visible: list[list[bool]] = []
    for node, parent in enumerate(parents):
        above = parent if parent >= 0 else 0
        row = visible[above].copy() if node else [False] * len(parents)
        row[node] = True
        levels.append(levels[above] + 1 if node else 0)
        visible.append(row)
    return levels, visible
