"""Attention over SGLang's KV cache, for a whole batch in one call per layer.

The keys and values of all sequences are gathered into one padded rectangle and
attended to by one scaled_dot_product_attention. Query heads that share a KV head
become query rows of it, so keys and values are never copied per head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lr_sglang.cpu.plan import DecodePlan, ExtendPlan, PooledPlan, plan_decode, plan_extend


class BatchedAttention:
    """The two attention operators of one backend, with one plan for all layers of a forward pass.

    A plan is used again for the same tensor objects, and only until the next `new_forward`: SGLang may change
    a tensor in place from one pass to the next. The arguments are those of sgl_kernel's operators.
    """

    def __init__(self) -> None:
        self._tensors: tuple[torch.Tensor | None, ...] = ()
        self._numbers: tuple[int, ...] = ()
        self._plan: DecodePlan | PooledPlan | ExtendPlan | None = None

    def new_forward(self) -> None:
        """Forget the plan: another forward pass begins."""
        self._tensors, self._numbers, self._plan = (), (), None

    def _is_known(self, tensors: tuple[torch.Tensor | None, ...], numbers: tuple[int, ...]) -> bool:
        if len(tensors) == len(self._tensors) and numbers == self._numbers:
            return all(mine is theirs for mine, theirs in zip(tensors, self._tensors, strict=True))
        self._tensors, self._numbers = tensors, numbers
        return False

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        output: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        loc: torch.Tensor,
        attn_logits: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        sm_scale: float,
        logit_cap: float,
        is_cross_attn: bool,
        sliding_window_size: int,
        encoder_lens: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> None:
        """One new token for every sequence.

        Writes key and value [batch, kv_heads, dim] to rows `loc` of the caches [rows, kv_heads, dim], then
        attends with query [batch, heads, dim] over the first `seq_lens` [batch] entries of every sequence's
        row of `req_to_token`, into output [batch, heads, dim]. `attn_logits` is not used.

        Raises NotImplementedError for cross attention.
        """
        _refuse_encoder(is_cross_attn, encoder_lens)
        if key is not None and value is not None:
            k_cache.index_copy_(0, loc, key.view(-1, *k_cache.shape[1:]).to(k_cache.dtype))
            v_cache.index_copy_(0, loc, value.view(-1, *v_cache.shape[1:]).to(v_cache.dtype))
        group = query.shape[1] // k_cache.shape[1]
        plan = self._decode_plan(req_to_token, req_pool_indices, seq_lens, group, sliding_window_size)
        output.copy_(_attend_decode(query, k_cache, v_cache, plan, sm_scale, logit_cap, sinks))

    def decode_step(self, backend: Any, forward_batch: Any, group: int) -> Callable[..., torch.Tensor]:
        """The decode step of `forward_batch`, stripped for a plain model, as one function for its layers.

        It takes a layer's number, its scale, query [batch, heads, dim], key and value [batch, kv_heads, dim],
        and returns [batch, heads, dim].
        """
        pool, loc = backend.token_to_kv_pool, forward_batch.out_cache_loc
        table = backend.req_to_token_pool.req_to_token
        plan = self._decode_plan(table, forward_batch.req_pool_indices, forward_batch.seq_lens, group, 0)

        def step(layer: int, scale: float, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            k_cache, v_cache = pool.get_key_buffer(layer), pool.get_value_buffer(layer)
            k_cache.index_copy_(0, loc, key)
            v_cache.index_copy_(0, loc, value)
            return _attend_decode(query, k_cache, v_cache, plan, scale, 0.0, None)

        return step

    def _decode_plan(
        self, req_to_token: torch.Tensor, requests: torch.Tensor, seq_lens: torch.Tensor, group: int, window: int
    ) -> DecodePlan | PooledPlan:
        if not self._is_known((req_to_token, requests, seq_lens), (group, window)):
            self._plan = plan_decode(req_to_token, requests, seq_lens, group, window)
        assert isinstance(self._plan, DecodePlan | PooledPlan)
        return self._plan

    def extend(
        self,
        q_extend: torch.Tensor,
        k_extend: torch.Tensor | None,
        v_extend: torch.Tensor | None,
        o_extend: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        extend_start_loc: torch.Tensor,
        max_len_extend: int,
        sm_scale: float,
        logit_cap: float,
        is_cross_attn: bool,
        sliding_window_size: int,
        encoder_lens: torch.Tensor | None,
        sinks: torch.Tensor | None,
        tree_mask: torch.Tensor | None,
    ) -> None:
        """New tokens for every sequence, after the prefix that it has in the cache.

        q_extend and o_extend are [tokens, heads, dim], k_extend and v_extend [tokens, kv_heads, dim], all
        sequences one after the other; `seq_lens` [batch] counts prefix and new tokens, `extend_seq_lens`
        [batch] the new ones. Attention is causal, or follows `tree_mask` (see plan_extend) among new tokens.

        Raises NotImplementedError for cross attention, ValueError as plan_extend does.
        """
        _refuse_encoder(is_cross_attn, encoder_lens)
        kv_heads, dim = k_buffer.shape[1], q_extend.shape[-1]
        group = q_extend.shape[1] // kv_heads
        tensors = (req_to_token, req_pool_indices, seq_lens, extend_seq_lens, tree_mask)
        if not self._is_known(tensors, (group, sliding_window_size)):
            self._plan = plan_extend(
                req_to_token, req_pool_indices, seq_lens, extend_seq_lens, group, sliding_window_size, tree_mask
            )
        plan = self._plan
        assert isinstance(plan, ExtendPlan)
        keys = _with_new(_gather(k_buffer, plan, q_extend.dtype), k_extend, plan).transpose(1, 2)
        values = _with_new(_gather(v_buffer, plan, q_extend.dtype), v_extend, plan).transpose(1, 2)
        padded = q_extend
        if plan.queries is not None:
            padded = q_extend.new_zeros((plan.batch * plan.longest, *q_extend.shape[1:]))
            padded.index_copy_(0, plan.queries, q_extend)
        grouped = padded.view(plan.batch, plan.longest, kv_heads, group, dim).transpose(1, 2)
        grouped = grouped.reshape(plan.batch, kv_heads, plan.longest * group, dim)
        result = _attend(grouped, keys, values, plan.mask, sm_scale, logit_cap, sinks)
        result = result.view(plan.batch, kv_heads, plan.longest, group, -1).transpose(1, 2)
        result = result.reshape(plan.batch * plan.longest, *o_extend.shape[1:])
        o_extend.copy_(result if plan.queries is None else result.index_select(0, plan.queries))


def decode_attention_cpu(*arguments: object) -> None:
    """`torch.ops.sgl_kernel.decode_attention_cpu`: BatchedAttention.decode with nothing remembered."""
    BatchedAttention().decode(*arguments)  # type: ignore[arg-type]


def extend_attention_cpu(*arguments: object) -> None:
    """`torch.ops.sgl_kernel.extend_attention_cpu`: BatchedAttention.extend with nothing remembered."""
    BatchedAttention().extend(*arguments)  # type: ignore[arg-type]


def _refuse_encoder(is_cross_attn: bool, encoder_lens: torch.Tensor | None) -> None:
    if is_cross_attn or encoder_lens is not None:
        raise NotImplementedError("lr-sglang's CPU attention serves decoder-only models: no cross attention")


def _attend_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: DecodePlan | PooledPlan,
    scale: float,
    logit_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [batch, heads, dim] -> [batch, heads, value dim]."""
    batch, heads, dim = query.shape
    kv_heads = k_cache.shape[1]
    grouped = query.view(batch, kv_heads, heads // kv_heads, dim)
    if isinstance(plan, DecodePlan):
        keys = _gather(k_cache, plan, query.dtype).transpose(1, 2)
        values = _gather(v_cache, plan, query.dtype).transpose(1, 2)
        return _attend(grouped, keys, values, plan.mask, scale, logit_cap, sinks).reshape(batch, heads, -1)
    grouped = grouped.transpose(0, 1).reshape(1, kv_heads, -1, dim)
    keys, values = (
        (cache[plan.rows] if isinstance(plan.rows, slice) else cache.index_select(0, plan.rows))
        .to(query.dtype)
        .transpose(0, 1)
        .unsqueeze(0)
        for cache in (k_cache, v_cache)
    )
    result = _attend(grouped, keys, values, plan.mask, scale, logit_cap, sinks)
    return result.view(kv_heads, batch, heads // kv_heads, -1).transpose(0, 1).reshape(batch, heads, -1)


def _gather(cache: torch.Tensor, plan: DecodePlan | ExtendPlan, dtype: torch.dtype) -> torch.Tensor:
    return cache.index_select(0, plan.rows).view(plan.batch, plan.width, *cache.shape[1:]).to(dtype)


def _with_new(gathered: torch.Tensor, new: torch.Tensor | None, plan: ExtendPlan) -> torch.Tensor:
    """Put the new tokens' own entries in place: the cache need not hold them yet."""
    if new is not None:
        flat = gathered.view(-1, *gathered.shape[2:])
        flat.index_copy_(0, plan.columns, new.view(-1, *flat.shape[1:]).to(flat.dtype))
    return gathered


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    logit_cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [batch, kv_heads, rows, dim], keys and values [batch, kv_heads, width, dim] -> like query."""
    if logit_cap <= 0 and sinks is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask.to(query.dtype), scale=scale)
    scores = query.float() @ keys.float().transpose(2, 3) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores + mask
    if sinks is not None:  # one more column per query head, which takes weight and gives no value
        kv_heads, rows = query.shape[1:3]
        by_row = sinks.float().view(kv_heads, -1).repeat(1, rows * kv_heads // sinks.numel())
        scores = torch.cat([scores, by_row.view(1, kv_heads, rows, 1).expand(scores.shape[0], -1, -1, -1)], -1)
        return (torch.softmax(scores, -1)[..., :-1] @ values.float()).to(query.dtype)
    return (torch.softmax(scores, -1) @ values.float()).to(query.dtype)
