"""Gated DeltaNet, the linear attention of hybrids (Qwen3.5 and later), in PyTorch.

A layer keeps two states of a sequence, each in a row of one of SGLang's pools: the last inputs of a
causal convolution, and for each value head a matrix [value_dim, key_dim]. SGLang's prefix cache
copies whole rows, so nothing here depends on where a row comes from.

Some functions take the place of SGLang's wrappers in ``sgl_kernel.mamba``, which lack the arguments
of speculative decoding (see ``REPLACED``). Both of SGLang's strategies for keeping states work:
``no_buffer``, and ``extra_buffer``, which also keeps states within a prompt and within an answer.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # tokens of one triangular system; SGLang keeps states within a prompt at this distance
EPSILON = 1e-6  # of the norms of queries and keys


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """Multiplies ``x`` by the sigmoid of a gate of its shape or [tokens, heads, dim]."""
    x.mul_(torch.sigmoid(gate.reshape(x.shape)))


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys with the norm of each head, [tokens * heads, dim]."""
    normed = (
        _gemma_norm(x.reshape(-1, head_dim), weight, eps)
        for x, weight in ((q, q_weight), (k, k_weight))
    )
    return next(normed), next(normed)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``fused_qk_gemma_rmsnorm_cpu``, for query heads that have their gate behind them; the gate
    comes third.
    """
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).chunk(2, -1)
    q, k = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim)
    return q, k, gate.contiguous()


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values in one row; the gate of the output [tokens, v_heads, v_dim]; and two
    parts of [tokens, v_heads], for the strength of a write and for the decay.
    """
    mixed, z = qkvz.split([2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim], -1)
    b, a = ba.split([v_heads, v_heads], -1)
    return mixed.contiguous(), z.reshape(-1, v_heads, v_dim), b.contiguous(), a.contiguous()


def fused_gdn_gating_cpu(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The logarithm of the decay and the strength of a write, both [1, tokens, heads] in
    float32.
    """
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay.unsqueeze(0), torch.sigmoid(b.float()).unsqueeze(0)


def _gemma_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * (1.0 + weight.float())).to(x.dtype)


def gated_norm(norm: Any, x: Tensor, gate: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The forward pass of SGLang's gated norm: an RMS norm, then the gate."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    wide = wide * norm.weight.float()
    opened = torch.sigmoid(gate.float())
    return (wide * (opened if norm.activation == "sigmoid" else opened * gate.float())).to(x.dtype)


def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Some tokens of the gated delta rule, for any number of independent heads.

    With S before a token, S' = exp(decay) S + u k^T after it, where u = beta (v - exp(decay) S k);
    the output is S' q. A token's u depends on earlier ones through their keys only, so that all of
    them solve one triangular system.

    Args:
        state: [..., v_dim, k_dim] in float32.
        q, k: [..., tokens, k_dim]; q is scaled already.
        v: [..., tokens, v_dim].
        decay, beta: [..., tokens].

    Returns:
        Outputs [..., tokens, v_dim], and the state after the last token.
    """
    total = decay.cumsum(-1)
    tokens = decay.shape[-1]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    between = between.masked_fill(~causal, float("-inf")).exp()
    begun = total.exp().unsqueeze(-1)
    strength = beta.unsqueeze(-1)
    u = strength * (v - begun * (k @ state.mT))
    if tokens > 1:
        system = (strength * between * (k @ k.mT)).tril(-1)
        u = torch.linalg.solve_triangular(system, u, upper=False, unitriangular=True)
    out = begun * (q @ state.mT) + (between * (q @ k.mT)) @ u
    last = between[..., -1, :, None]
    return out, begun[..., -1:, :] * state + (last * u).mT @ k


def _heads(x: Tensor, heads: int) -> Tensor:
    """[tokens, some heads, dim] as [heads, tokens, dim] in float32; a key head serves several value
    heads.
    """
    return x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> tuple[Tensor, None, Tensor]:
    """New tokens of several sequences behind one another: q, k, v [1, tokens, heads, dim]; g and
    beta [1, tokens, heads]. Rows ``initial_state_indices`` of ``initial_state`` are read and
    replaced.

    Returns:
        Outputs [1, tokens, heads, v_dim]; nothing; and the states before each chunk of each
        sequence, [1, chunks, heads, v_dim, k_dim].
    """
    assert not head_first and use_qk_l2norm_in_kernel
    heads = v.shape[2]
    scale = q.shape[-1] ** -0.5
    q = _unit(_heads(q[0], heads)) * scale
    k = _unit(_heads(k[0], heads))
    v = _heads(v[0], heads)
    decay = g[0].float().T
    strength = beta[0].float().T
    out = torch.zeros_like(v)
    bounds = cu_seqlens.tolist()
    begun = list[Tensor]()
    for row, begin, end in zip(initial_state_indices.tolist(), bounds, bounds[1:], strict=False):
        state = initial_state[row].to(torch.float32, copy=True)
        for at in range(begin, end, CHUNK):
            begun.append(state)
            part = slice(at, min(at + CHUNK, end))
            out[:, part], state = delta_rule(
                state, q[:, part], k[:, part], v[:, part], decay[:, part], strength[:, part]
            )
        initial_state[row] = state.to(initial_state.dtype)
    return out.transpose(0, 1).unsqueeze(0), None, torch.stack(begun).unsqueeze(0)


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool,
    softplus_beta: float,
    softplus_threshold: float,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """One token of each sequence, or ``cache_steps`` drafted tokens of each, which are verified.

    A verification leaves the states as they are. It writes the state after every drafted token to
    ``intermediate_states_buffer`` [rows, steps, heads, v_dim, k_dim], of which SGLang then takes
    the last accepted one (``take_accepted``). In a tree, ``retrieve_parent_token`` [batch, steps]
    is the token that a token follows.
    """
    assert use_qk_l2norm_in_kernel and not is_kda
    heads = v.shape[2]
    steps = cache_steps or 1
    batch = v.shape[1] // steps
    decay, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    q = _unit(_heads(q[0], heads)) * q.shape[-1] ** -0.5
    k = _unit(_heads(k[0], heads))

    def rows(x: Tensor) -> Tensor:
        """[heads, batch * steps, dim] as [batch, heads, steps, dim]."""
        return x.view(heads, batch, steps, -1).transpose(0, 1)

    q = rows(q)
    k = rows(k)
    v = rows(_heads(v[0], heads))
    decay, beta = (x[0].view(batch, steps, heads).transpose(1, 2) for x in (decay, beta))
    indices = initial_state_indices[:batch].long()
    used = (indices >= 0).nonzero().view(-1)
    begin = initial_state_source[indices.clamp(min=0)].float()
    out = torch.zeros_like(v)
    states = list[Tensor]()
    for step in range(steps):
        one = slice(step, step + 1)
        before = _parents(begin, states, retrieve_parent_token)
        out[:, :, one], after = delta_rule(
            before, q[:, :, one], k[:, :, one], v[:, :, one], decay[:, :, one], beta[:, :, one]
        )
        states.append(after)
        if intermediate_states_buffer is not None and intermediate_state_indices is not None:
            to = intermediate_state_indices[:batch].long()[used]
            intermediate_states_buffer[to, step] = after[used].to(intermediate_states_buffer.dtype)
    if not disable_state_update:
        initial_state_source[indices[used]] = states[-1][used].to(initial_state_source.dtype)
    return out.transpose(1, 2).reshape(1, batch * steps, heads, -1).to(a.dtype)


def _parents(begin: Tensor, earlier: list[Tensor], parents: Tensor | None) -> Tensor:
    """What stands before the next step: of the step before it, or of each row's parent in
    a tree.
    """
    if not earlier:
        return begin
    if parents is None:
        return earlier[-1]
    before = begin.clone()
    for row, parent in enumerate(parents[: len(begin), len(earlier)].tolist()):
        if parent >= 0:
            before[row] = earlier[parent][row]
    return before


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: list[int] | None = None,
) -> Tensor:
    """New tokens of several sequences, x [channels, tokens]; their states [rows, channels,
    inputs] are read and replaced.
    """
    out = torch.empty_like(x)
    keep = conv_states.shape[-1]
    bounds = query_start_loc.tolist()
    rows = cache_indices.tolist()
    known = has_initial_state.tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        row = rows[number]
        before = conv_states[row].to(x.dtype) if known[number] else x.new_zeros(len(x), keep)
        window = torch.cat([before, x[:, begin:end]], 1)
        out[:, begin:end] = _convolve(window.unsqueeze(0), weight, bias, activation)[0]
        conv_states[row] = window[:, window.shape[1] - keep :].to(conv_states.dtype)
    return out


def causal_conv1d_update(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_state_indices: Tensor,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """One token of each sequence, x [batch, channels]; or drafted tokens, [batch, channels, steps].

    As in ``fused_sigmoid_gating_delta_rule_update_cpu``, a verification leaves the states, and
    writes the last inputs at every drafted token to ``intermediate_conv_window`` [rows, steps,
    channels, inputs]. It also works out a tree's ``retrieve_parent_token``, which the recurrence
    reads.
    """
    keep = conv_states.shape[-1]
    indices = conv_state_indices.long()
    begin = conv_states[indices.clamp(min=0)].to(x.dtype)
    used = (indices >= 0).nonzero().view(-1)
    if x.dim() == 2:
        window = torch.cat([begin, x.unsqueeze(-1)], -1)
        conv_states[indices[used]] = window[used, :, 1:].to(conv_states.dtype)
        return _convolve(window, weight, bias, activation).squeeze(-1)
    assert intermediate_conv_window is not None and intermediate_state_indices is not None
    if retrieve_parent_token is not None:
        assert retrieve_next_token is not None and retrieve_next_sibling is not None
        find_parents(retrieve_next_token, retrieve_next_sibling, retrieve_parent_token)
    to = intermediate_state_indices.long()[used]
    out = torch.empty_like(x)
    windows: list[Tensor] = []
    for step in range(x.shape[2]):
        before = _parents(begin, windows, retrieve_parent_token)
        window = torch.cat([before, x[:, :, step : step + 1]], -1)
        out[:, :, step] = _convolve(window, weight, bias, activation).squeeze(-1)
        windows.append(window[..., -keep:])
        kept = windows[-1][used].to(intermediate_conv_window.dtype)
        intermediate_conv_window[to, step] = kept
    return out


def _convolve(
    window: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    out = F.conv1d(window, weight.unsqueeze(1), bias, groups=len(weight))
    return F.silu(out) if activation in ("silu", "swish") else out


def find_parents(next_token: Tensor, next_sibling: Tensor, parents: Tensor) -> None:
    """Writes each token's parent from first children and next siblings, all [batch, steps]; -1 is
    none.
    """
    parents.fill_(-1)
    for row, (children, siblings) in enumerate(
        zip(next_token.tolist(), next_sibling.tolist(), strict=True)
    ):
        for parent, child in enumerate(children):
            while child >= 0:
                parents[row, child] = parent
                child = siblings[child]


def take_accepted(
    dst: Tensor,
    src: Tensor,
    dst_indices: Tensor,
    steps: Tensor,
    src_indices: Tensor | None = None,
) -> None:
    """Copies the states after the last accepted tokens, in all layers: ``dst[:, dst_indices[i]] =
    src[:, i, steps[i]]`` where ``steps`` is not negative.
    """
    taken = (steps >= 0) & (dst_indices >= 0)
    rows = torch.arange(len(steps)) if src_indices is None else src_indices
    found = src[:, rows[taken].long(), steps[taken].long()]
    dst[:, dst_indices[taken].long()] = found.to(dst.dtype)


def keep_states(
    conv: Tensor,
    matrices: Tensor,
    rows: Tensor,
    kept: Tensor,
    to: Tensor,
    batch: int,
    check_freed_slots: bool = False,
) -> None:
    """Copies the states of the sequences that are ``kept`` to other rows, in both pools [layers,
    rows, ...].
    """
    rows = rows[:batch]
    kept = kept[:batch]
    to = to[:batch]
    chosen = kept & (rows >= 0) & (to >= 0)
    for pool in (conv, matrices):
        pool[:, to[chosen].long()] = pool[:, rows[chosen].long()]


def add_shared_expert(hidden: Tensor, gate_weight: Tensor, shared: Tensor, out: Tensor) -> None:
    """Adds the expert that all tokens share to the chosen ones' output, times its gate."""
    out.add_(torch.sigmoid((hidden * gate_weight).sum(-1, keepdim=True)) * shared)


def device_module(device: object = None) -> Any:
    """``torch.get_device_module``, with which Qwen3-Next asks for the device of its norms: by
    itself it names the accelerator that PyTorch was built for, whether there is one or not.
    """
    return torch.cpu


# Operators, each with the arguments that it writes to.
GATED_DELTA_OPERATORS: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (fused_sigmoid_mul_cpu, ("x",)),
    (fused_qk_gemma_rmsnorm_cpu, ()),
    (fused_qk_gemma_rmsnorm_with_gate_cpu, ()),
    (fused_qkvzba_split_reshape_cat_contiguous_cpu, ()),
    (fused_gdn_gating_cpu, ()),
    (
        fused_sigmoid_gating_delta_rule_update_cpu,
        ("initial_state_source", "intermediate_states_buffer"),
    ),
)
_KERNELS = "sgl_kernel.mamba"
_OPS = "sglang.kernels.ops"
_SCATTER = f"{_OPS}.mamba.mamba_state_scatter_triton"
_EXTRA = "sglang.srt.arg_groups.mamba_hook"
# Functions of SGLang, and what takes their place.
REPLACED: tuple[tuple[str, Callable[..., Any]], ...] = (
    (f"{_KERNELS}.causal_conv1d_fn_cpu", causal_conv1d_fn),
    (f"{_KERNELS}.causal_conv1d_update_cpu", causal_conv1d_update),
    (f"{_KERNELS}.chunk_gated_delta_rule_cpu", chunk_gated_delta_rule),
    (f"{_OPS}.attention.fla.layernorm_gated.RMSNorm.forward", gated_norm),
    (f"{_OPS}.attention.fla.fused_norm_gate.FusedRMSNormGated.forward", gated_norm),
    (f"{_OPS}.elementwise.elementwise.fused_gate_sigmoid_mul_add", add_shared_expert),
    (f"{_SCATTER}.track_mamba_states_all_layers", keep_states),
    ("torch.get_device_module", device_module),
    # With ``extra_buffer`` SGLang pins a tensor whatever the device is, and leaves CPUs out, whose
    # own operators give no states within a prompt.
    ("torch.Tensor.pin_memory", lambda tensor, *args: tensor),
    (f"{_EXTRA}._platform_supports_mamba_cache_extra_buffer", lambda: True),
    (f"{_SCATTER}.fused_mamba_state_scatter_with_mask", take_accepted),
    (f"{_SCATTER}.fused_conv_window_scatter_with_mask", take_accepted),
)
