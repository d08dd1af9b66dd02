"""Gated DeltaNet's operators against transformers', which go token by token, and against
themselves: any division of a sequence gives the same states.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

from lr_sglang.cpu import gated_delta as ours

KEY_HEADS, HEADS, DIM, KEEP, ROWS = 2, 4, 16, 3, 7
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(tokens: int):
    """Queries, keys, values, decays and strengths of a sequence, [1, tokens, ...]."""
    q, k = torch.randn(2, 1, tokens, KEY_HEADS, DIM)
    v = torch.randn(1, tokens, HEADS, DIM)
    decay, strength = -torch.rand(1, tokens, HEADS), torch.rand(1, tokens, HEADS)
    return q, k, v, decay, strength


def extended(q, k, v, decay, strength, states, bounds, rows):
    of_rows, starts = torch.tensor(rows), torch.tensor(bounds)
    out, *_ = ours.chunk_gated_delta_rule(
        q, k, v, decay, strength, states, starts, False, True, of_rows
    )
    return out


@pytest.mark.parametrize("tokens", [1, 5, 64, 150])
def test_a_sequence_is_that_of_transformers(tokens):
    q, k, v, decay, strength = inputs(tokens)
    begun = torch.randn(1, HEADS, DIM, DIM)
    wide_q, wide_k = (x.repeat_interleave(HEADS // KEY_HEADS, 2) for x in (q, k))
    expected, last = theirs.torch_recurrent_gated_delta_rule(
        *(wide_q, wide_k, v, decay, strength, begun), True, True
    )
    states = torch.zeros(ROWS, HEADS, DIM, DIM)
    states[4] = begun[0].mT  # SGLang keeps [value, key]
    assert_close(extended(q, k, v, decay, strength, states, [0, tokens], [4]), expected, **CLOSE)
    assert_close(states[4], last[0].mT, **CLOSE)
    assert not states[[0, 1, 2, 3, 5, 6]].any()


def test_several_sequences_are_each_alone():
    whole, bounds, rows = inputs(100), [0, 30, 31, 100], [5, 0, 2]
    states = torch.randn(ROWS, HEADS, DIM, DIM)
    each = states.clone()
    out = extended(*whole, states, bounds, rows)
    parts = []
    for begin, end, row in zip(bounds, bounds[1:], rows, strict=False):
        parts.append(extended(*(x[:, begin:end] for x in whole), each, [0, end - begin], [row]))
    assert_close(out, torch.cat(parts, 1), **CLOSE)
    assert_close(states, each, **CLOSE)


@pytest.mark.parametrize("tokens", [64, 150])
def test_the_states_before_every_chunk_are_given_in_order(tokens):
    bounds, states = [0, tokens, tokens + 5], torch.randn(ROWS, HEADS, DIM, DIM)
    whole, begun = inputs(tokens + 5), states.clone()
    *_, found = ours.chunk_gated_delta_rule(
        *(*whole, states, torch.tensor(bounds), False, True), torch.tensor([2, 6])
    )
    before = [begun[2].clone()]
    for at in range(0, tokens - ours.CHUNK, ours.CHUNK):
        extended(*(x[:, at : at + ours.CHUNK] for x in whole), begun, [0, ours.CHUNK], [2])
        before.append(begun[2].clone())
    assert_close(found, torch.stack([*before, begun[6]]).unsqueeze(0), **CLOSE)


def test_states_are_copied_where_they_are_to_be_kept():
    conv, matrices = torch.randn(2, ROWS, 6, KEEP), torch.randn(2, ROWS, HEADS, DIM, DIM)
    before, kept = (conv.clone(), matrices.clone()), torch.tensor([True, False, True, True])
    rows, to = torch.tensor([1, 2, -1, 3]), torch.tensor([4, 5, 6, 0])
    ours.keep_states(conv, matrices, rows, kept, to, 3)  # the last row is beyond the batch
    for pool, old in zip((conv, matrices), before, strict=True):
        assert torch.equal(pool[:, 4], old[:, 1])
        others = [row for row in range(ROWS) if row != 4]
        assert torch.equal(pool[:, others], old[:, others])


def decoded(q, k, v, a, b, states, rows, **more):
    """One token, or drafted ones, of each row; A_log and dt_bias are zero, so a gives the decay."""
    zeros = torch.zeros(HEADS)
    return ours.fused_sigmoid_gating_delta_rule_update_cpu(
        *(zeros, zeros, q, k, v, a, b, states, torch.tensor(rows), torch.tensor([0])),
        *(True, 1.0, 20.0),
        **more,
    )


def test_decoding_goes_on_from_the_state_of_a_prompt():
    q, k, v, *_ = inputs(20)
    a, b = torch.randn(2, 20, HEADS)
    decay, strength = ours.fused_gdn_gating_cpu(torch.zeros(HEADS), a, b, torch.zeros(HEADS))
    whole, stepped = torch.zeros(2, ROWS, HEADS, DIM, DIM)
    expected = extended(q, k, v, decay, strength, whole, [0, 20], [3])
    for at in range(20):
        one = slice(at, at + 1)
        out = decoded(q[:, one], k[:, one], v[:, one], a[one], b[one], stepped, [3])
        assert_close(out[0, 0], expected[0, at], **CLOSE)
    assert_close(stepped[3], whole[3], **CLOSE)
    padded = stepped.clone()
    decoded(q[:, :1], k[:, :1], v[:, :1], a[:1], b[:1], stepped, [-1])  # a row of padding
    assert torch.equal(padded, stepped)


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 2]], ids=["a chain", "a tree"])
def test_a_verification_leaves_states_and_shows_those_after_each_token(parents):
    batch, steps = 2, 4
    q, k, v, *_ = inputs(batch * steps)
    a, b = torch.randn(2, batch * steps, HEADS)
    states = torch.randn(ROWS, HEADS, DIM, DIM)
    before, after = states.clone(), torch.zeros(ROWS, steps, HEADS, DIM, DIM)
    tree = torch.tensor([parents] * batch) if parents else None
    out = decoded(
        *(q, k, v, a, b, states, [5, 1]),
        disable_state_update=True,
        intermediate_states_buffer=after,
        intermediate_state_indices=torch.tensor([0, 1]),
        cache_steps=steps,
        retrieve_parent_token=tree,
    )
    assert torch.equal(states, before)
    for row, number in ((5, 0), (1, 1)):
        for step in range(steps):
            path, at = [], step
            while at >= 0:
                path.insert(0, number * steps + at)
                at = parents[at] if parents else at - 1
            alone = before.clone()
            for token in path:
                one = [token]
                last = decoded(q[:, one], k[:, one], v[:, one], a[one], b[one], alone, [row])
            assert_close(out[0, path[-1]], last[0, 0], **CLOSE)
            assert_close(after[number, step], alone[row], **CLOSE)
    pool = torch.zeros(1, ROWS, HEADS, DIM, DIM)
    ours.take_accepted(pool, after.unsqueeze(0), torch.tensor([5, 1]), torch.tensor([2, -1]))
    assert torch.equal(pool[0, 5], after[0, 2]) and not pool[0, 1].any()


def convolved(x, weight):
    """All of a sequence at once, [channels, tokens]."""
    padded = torch.nn.functional.pad(x, (KEEP, 0)).unsqueeze(0)
    return torch.nn.functional.silu(
        torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=len(weight))
    )[0]


@pytest.mark.parametrize("cut", [1, 2, 10, 28])
def test_a_convolution_goes_on_from_its_last_inputs(cut):
    channels, tokens = 6, 30
    x, weight = torch.randn(channels, tokens), torch.randn(channels, KEEP + 1)
    states, expected = torch.randn(ROWS, channels, KEEP), convolved(x, weight)
    known = [False, True]
    for (begin, end), has in zip(((0, cut), (cut, tokens - 1)), known, strict=True):
        out = ours.causal_conv1d_fn(
            *(x[:, begin:end], weight, None, "silu", states, torch.tensor([has])),
            *(torch.tensor([4]), torch.tensor([0, end - begin])),
        )
        assert_close(out, expected[:, begin:end], **CLOSE)
    windows, before = torch.zeros(ROWS, 1, channels, KEEP), states.clone()
    drafted = ours.causal_conv1d_update(
        *(x[:, -1:].unsqueeze(0), states, weight, None, "silu", torch.tensor([4])),
        *(windows, torch.tensor([0])),
    )
    assert torch.equal(states, before)
    last = ours.causal_conv1d_update(
        x[:, -1].unsqueeze(0), states, weight, None, "silu", torch.tensor([4])
    )
    assert_close(last[0], expected[:, -1], **CLOSE)
    assert_close(drafted[0, :, 0], last[0], **CLOSE)
    assert torch.equal(windows[0, 0], states[4])


def test_parents_follow_from_children_and_siblings():
    children = torch.tensor([[1, 3, -1, -1, -1]])
    siblings = torch.tensor([[-1, 2, 4, -1, -1]])
    parents = torch.zeros(1, 5, dtype=torch.long)
    ours.find_parents(children, siblings, parents)
    assert parents.tolist() == [[-1, 0, 0, 1, 0]]


def test_norms_and_gates_are_those_of_transformers():
    x, gate, weight = torch.randn(3, 5, DIM)
    norm = theirs.Qwen3_5RMSNormGated(DIM)
    norm.weight.data, norm.eps = weight[0], norm.variance_epsilon
    assert_close(ours.gated_norm(norm, x, gate), norm(x, gate), **CLOSE)
    plain = theirs.Qwen3_5RMSNorm(DIM)
    plain.weight.data = weight[0]
    q, k, opened = ours.fused_qk_gemma_rmsnorm_with_gate_cpu(
        torch.cat([x, gate], -1), x, weight[0], weight[0], plain.eps, DIM, 1
    )
    assert_close(q, plain(x), **CLOSE)
    assert_close(k, plain(x), **CLOSE)
    assert torch.equal(opened[:, 0], gate)
    kept = x.clone()
    ours.fused_sigmoid_mul_cpu(kept, gate)
    assert_close(kept, x * torch.sigmoid(gate), **CLOSE)
    added = x.clone()
    ours.add_shared_expert(gate, weight[0], weight, added)
    opened = torch.sigmoid(torch.nn.functional.linear(gate, weight[:1]))
    assert_close(added, x + opened * weight, **CLOSE)


def test_a_projection_is_split_into_its_parts():
    keys, values, tokens = KEY_HEADS * DIM, HEADS * DIM, 3
    parts = [torch.randn(tokens, size) for size in (2 * keys + values, values, HEADS, HEADS)]
    found = ours.fused_qkvzba_split_reshape_cat_contiguous_cpu(
        torch.cat(parts[:2], -1), torch.cat(parts[2:], -1), KEY_HEADS, HEADS, DIM, DIM
    )
    parts[1] = parts[1].view(tokens, HEADS, DIM)
    for one, other in zip(found, parts, strict=True):
        assert torch.equal(one, other)
