"""What the tests of the CPU operators share: them, attention written out, and trees of drafted
tokens.
"""

import pytest
import torch

from lr_sglang.cpu import operators


@pytest.fixture(autouse=True, scope="module")
def registered():
    """For every module that imports it."""
    operators.register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a server; more of them wait for each other on a busy machine
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers whichever tests ran before it."""
    # torch.manual_seed also formats a traceback for each kind of device
    torch.default_generator.manual_seed(0)


def reference(q, k, v, visible, scale):
    """q [n, heads, dim], k and v [m, kv_heads, dim], visible [n, m] -> [n, heads, dim],
    in float64.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, -1)
    return torch.einsum("hnm,mhd->nhd", weights, v)


def visible(parents: list[int]) -> torch.Tensor:
    """What every node of a tree sees, [n, n] bool: itself and the nodes on the way to it; one of
    parent -1 no other.
    """
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen
