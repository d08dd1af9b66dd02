"""The operators that verify drafted tokens against the target's; `trees` explains the tables of a
tree.
"""

import torch
from torch import Tensor


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root, at every node to the child that has the token which the target
    predicts.

    `candidates` [batch, n] are the nodes' tokens, `target_predict` [batch, n] the target's
    prediction after each.

    Written: `accept_index` [batch, longest], the numbers of the visited nodes, root first and -1
    behind them, at most `longest`; `accept_token_num` [batch], their number without the root;
    `predicts` [batch * n], the prediction after each visited node (unchanged elsewhere).
    """
    longest = accept_index.shape[1]
    wanted = target_predict.view(-1)
    wants = wanted.tolist()
    ways = [
        _walk(*tree, wants, longest)
        for tree in zip(
            candidates.tolist(),
            retrive_index.tolist(),
            retrive_next_token.tolist(),
            retrive_next_sibling.tolist(),
            strict=True,
        )
    ]
    accept_index.copy_(torch.tensor([way + [-1] * (longest - len(way)) for way in ways]))
    accept_token_num.copy_(torch.tensor([len(way) - 1 for way in ways]))
    nodes = torch.tensor([node for way in ways for node in way])
    predicts[nodes] = wanted[nodes].to(predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Write the last accepted token of each sequence into `bonus_tokens` [batch].

    `accept_tokens` has `accept_stride` places per sequence, of which the first `accept_lens`
    [batch] are taken.
    """
    last = torch.arange(accept_lens.shape[0]) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.view(-1).index_select(0, last))


def _walk(
    tokens: list[int],
    numbers: list[int],
    children: list[int],
    siblings: list[int],
    wants: list[int],
    longest: int,
) -> list[int]:
    """The numbers of the visited nodes of one tree; `wants` has the target's prediction
    by number.
    """
    node = 0
    way = [numbers[0]]
    while len(way) < longest:
        wanted = wants[way[-1]]
        node = children[node]
        while node >= 0 and tokens[node] != wanted:
            node = siblings[node]
        if node < 0:
            break
        way.append(numbers[node])
    return way
