"""The two attention operators that SGLang's `intel_amx` backend calls, for a whole batch in one
call per layer.
"""

from collections.abc import Callable
from typing import Any

import torch

from lr_sglang.cpu.attention_math import attend
from lr_sglang.cpu.decode import Padded, attend_decode, plan_decode
from lr_sglang.cpu.draft_pass import plan_drafted
from lr_sglang.cpu.extend import attend_extend, plan_extend
from lr_sglang.cpu.kv_buffer import KeptRows

# Takes a layer's number, query, caches of keys and values, and scale.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


class BatchedAttention:
    """The two attention operators of one backend, with one plan for all layers of a forward pass.

    A plan is reused for the same tensor objects until the next `new_forward`, because SGLang may
    change a tensor in place from one pass to the next. The arguments are those of sgl_kernel's
    operators.
    """

    def __init__(self) -> None:
        self._asked: tuple[Any, ...] = ()
        self._plan: Any = None
        self._kept = KeptRows()

    def new_forward(self) -> None:
        """Forget the plan: another forward pass begins."""
        self._asked = ()
        self._plan = None

    def _planned(self, plan: Callable[..., Any], *given: Any) -> Any:
        """`plan(*given)`, made at the first layer of a pass."""
        asked = (plan, *given)
        same = len(asked) == len(self._asked)
        if not same or any(a is not b for a, b in zip(asked, self._asked, strict=True)):
            self._asked = asked
            self._plan = plan(*given)
        return self._plan

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

        Writes key and value [batch, kv_heads, dim] to rows `loc` of the caches [rows, kv_heads,
        dim], then attends with query [batch, heads, dim] over the first `seq_lens` [batch] entries
        of every sequence's row of `req_to_token`, into output [batch, heads, dim]. `attn_logits` is
        not used.

        Raises NotImplementedError for anything but plain attention.
        """
        _need_plain(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks)
        if key is not None and value is not None:
            k_cache.index_copy_(0, loc, key.view(-1, *k_cache.shape[1:]).to(k_cache.dtype))
            v_cache.index_copy_(0, loc, value.view(-1, *v_cache.shape[1:]).to(v_cache.dtype))
        group = query.shape[1] // k_cache.shape[1]
        plan = self._planned(plan_decode, req_to_token, req_pool_indices, seq_lens, group)
        output.copy_(attend_decode(plan, query, k_cache, v_cache, sm_scale))

    def decode_step(
        self, backend: Any, forward_batch: Any, group: int
    ) -> Callable[..., torch.Tensor]:
        """The decode step of `forward_batch` for a plain model, as one function that all layers
        call.

        The function takes a layer's number, its scale, query [batch, heads, dim], key and value
        [batch, kv_heads, dim], and returns [batch, heads, dim].
        """
        # The branches of a draft have a table of their own, and each step of the draft its own
        # backend.
        table, seq_lens, requests = backend.draft_decode_metadata or (
            backend.req_to_token_pool.req_to_token,
            forward_batch.seq_lens,
            forward_batch.req_pool_indices,
        )
        # Under speculation, verification also writes to the rows of a batch between its decode
        # steps.
        keep = forward_batch.spec_info is None
        plan = self._planned(plan_decode, table, requests, seq_lens, group, keep)
        if keep and isinstance(plan, Padded):
            self._kept.begin(plan.rows.view(seq_lens.shape[0], -1), seq_lens)
            return _step(backend, forward_batch, self._kept_rows(forward_batch, plan.mask))
        return _step(backend, forward_batch, lambda _, *given: attend_decode(plan, *given))

    def extend_step(
        self, backend: Any, forward_batch: Any, group: int
    ) -> Callable[..., torch.Tensor]:
        """As decode_step, for a pass with several new tokens per sequence, trees of drafted tokens
        among them.
        """
        table = backend.req_to_token_pool.req_to_token
        requests = forward_batch.req_pool_indices
        seq_lens, extend_lens, _, tree_mask = backend.extend_metadata
        drafted = plan_drafted(table, requests, seq_lens, extend_lens, group, tree_mask)
        if drafted is not None:
            self._kept.clear()
            return _step(backend, forward_batch, lambda _, *given: attend_decode(drafted, *given))
        plans = self._planned(plan_extend, table, requests, seq_lens, extend_lens, group, tree_mask)
        # Between two verifications of a chain, nothing else writes to its rows; those of a tree are
        # moved.
        chain = forward_batch.forward_mode.is_target_verify() and tree_mask is None
        if chain and len(plans) == 1 and plans[0].queries is None:
            (plan,) = plans
            self._kept.begin(plan.rows.view(plan.batch, -1), seq_lens, plan.longest)
            return _step(backend, forward_batch, self._kept_rows(forward_batch, plan.mask))
        self._kept.clear()

        def padded(
            _: int, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
        ) -> torch.Tensor:
            output = torch.empty_like(query, memory_format=torch.contiguous_format)
            for plan in plans:
                attend_extend(plan, query, None, None, k_cache, v_cache, output, scale)
            return output

        return _step(backend, forward_batch, padded)

    def _kept_rows(self, forward_batch: Any, mask: torch.Tensor) -> Attend:
        """Attention over the padded rows that are kept from the last step."""
        kept = self._kept
        loc = forward_batch.out_cache_loc

        def attend_kept(
            layer: int,
            query: torch.Tensor,
            k_cache: torch.Tensor,
            v_cache: torch.Tensor,
            scale: float,
        ) -> torch.Tensor:
            return attend(query, *kept.read(layer, k_cache, v_cache, loc), mask, scale)

        return attend_kept

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

        q_extend and o_extend are [tokens, heads, dim], k_extend and v_extend [tokens, kv_heads,
        dim], all sequences one after the other; `seq_lens` [batch] counts prefix and new tokens,
        `extend_seq_lens` [batch] the new ones. Attention is causal, or follows `tree_mask` (see
        plan_extend) among new tokens.

        Raises NotImplementedError for anything but plain attention, ValueError as plan_extend does.
        """
        _need_plain(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks)
        self._kept.clear()
        group = q_extend.shape[1] // k_buffer.shape[1]
        plans = self._planned(
            plan_extend,
            req_to_token,
            req_pool_indices,
            seq_lens,
            extend_seq_lens,
            group,
            tree_mask,
        )
        for plan in plans:
            attend_extend(
                plan,
                q_extend,
                k_extend,
                v_extend,
                k_buffer,
                v_buffer,
                o_extend,
                sm_scale,
            )


def _step(backend: Any, forward_batch: Any, attention: Attend) -> Callable[..., torch.Tensor]:
    """The function that all layers of a pass call: it writes new keys and values to the caches."""
    pool = backend.token_to_kv_pool
    loc = forward_batch.out_cache_loc

    def step(
        layer: int, scale: float, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        k_cache = pool.get_key_buffer(layer)
        v_cache = pool.get_value_buffer(layer)
        k_cache.index_copy_(0, loc, key)
        v_cache.index_copy_(0, loc, value)
        return attention(layer, query, k_cache, v_cache, scale)

    return step


def _need_plain(
    logit_cap: float,
    is_cross_attn: bool,
    window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    other = encoder_lens is not None or sinks is not None
    if logit_cap > 0 or is_cross_attn or window > 0 or other:
        raise NotImplementedError(
            "this model's attention (cross attention, a sliding window, a cap of scores or sinks) "
            "has no CPU version in lr-sglang"
        )
