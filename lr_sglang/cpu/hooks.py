"""What we change in SGLang on a CPU, through its own HookRegistry."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lr_sglang.cpu import gated_delta, settings
from lr_sglang.cpu.attention import BatchedAttention
from lr_sglang.plugin.hooks import FEEDER, need
from lr_sglang.sglang_api import release

_SRT = "sglang.srt"
_BACKEND = f"{_SRT}.layers.attention.intel_amx_backend.IntelAMXAttnBackend"
_SAMPLING = f"{_SRT}.sampling"


def install_cpu_hooks() -> None:
    """Register all hooks; SGLang applies them when every plugin has been called.

    Raises SystemExit where an untested SGLang lacks what they change: it would only log that, and
    go on without.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lr_sglang.cpu import penalties, qwen3
    from lr_sglang.cpu.speculation import sampling
    from lr_sglang.plugin import seeds

    _allow_intel_amx()
    batch_info = f"{_SAMPLING}.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
    unquantized = f"{_SRT}.layers.quantization.unquant"
    loaded = "process_weights_after_loading"
    hooks: tuple[tuple[str, Callable[..., Any], Any], ...] = (
        (f"{unquantized}.UnquantizedLinearMethod.{loaded}", _lay_out_weight, HookType.AFTER),
        (f"{unquantized}.UnquantizedEmbeddingMethod.{loaded}", _lay_out_weight, HookType.AFTER),
        (f"{unquantized}.UnquantizedFusedMoEMethod.{loaded}", _lay_out_experts, HookType.AFTER),
        (f"{_SRT}.models.qwen3.Qwen3Model.forward", qwen3.forward_qwen3, HookType.AROUND),
        (f"{_BACKEND}.__init__", _use_batched_attention, HookType.AFTER),
        (f"{_BACKEND}.init_forward_metadata", _begin_forward, HookType.BEFORE),
        (batch_info, seeds.carry_seeds, HookType.AFTER),
        (batch_info, penalties.count_written, HookType.AFTER),
        (
            f"{_SRT}.layers.sampler.Sampler._sample_from_probs",
            seeds.sample_with_seeds,
            HookType.AROUND,
        ),
        (
            f"{_SRT}.speculative.eagle_utils.eagle_sample",
            sampling.sample_and_verify,
            HookType.AROUND,
        ),
        (
            f"{_SRT}.arg_groups.speculative_hook.handle_speculative_decoding",
            sampling.refuse_processors,
            HookType.AFTER,
        ),
        (
            # SGLang compiles it at the first request that has such a penalty.
            f"{_SAMPLING}.penaltylib.repetition_penalty.apply_scaling_penalties",
            penalties.scale_penalties,
            HookType.REPLACE,
        ),
    )
    FEEDER.draws = "seeds"  # by `sampling.sample_and_verify`
    if settings.CONV_DTYPE in os.environ:
        hooks += tuple((name, hook, HookType.REPLACE) for name, hook in gated_delta.REPLACED)
    for name, hook, kind in hooks:
        HookRegistry.register(name, hook, kind)
    if not release.is_tested(release.version()):
        need(name for name, _, _ in hooks)


def _allow_intel_amx() -> None:
    """Keep `--attention-backend intel_amx`: ServerArgs would turn it into torch_native.

    Only the check for ServerArgs is changed. For all other modules it stays negative, so that
    linear layers and norms keep their PyTorch forward; HookRegistry would change it in every
    module.
    """
    from sglang.srt import runtime_context
    from sglang.srt.arg_groups import overrides

    if hasattr(runtime_context, "override_platform"):
        runtime_context.override_platform(has_amx=True).install()
    else:  # 0.5.16
        overrides.cpu_has_amx_support = lambda: True


def _use_batched_attention(result: None, backend: Any, *args: object, **kwargs: object) -> None:
    """Replace the backend's two operators by ours: one plan per forward pass instead of one per
    layer, and no dispatcher in between.
    """
    backend.batched_attention = BatchedAttention()
    early = release.version().startswith("0.5.16")
    backend.decode_attention_fwd = partial(_decode_0_5_16 if early else _decode, backend)
    backend.extend_attention_fwd = partial(_extend_0_5_16 if early else _extend, backend)


def _decode(
    backend: Any,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key_scale: float,
    value_scale: float,
    *others: Any,
) -> None:
    _refuse(key_scale, value_scale)
    backend.batched_attention.decode(query, k_cache, v_cache, *others)


def _extend(
    backend: Any,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key_scale: float,
    value_scale: float,
    *others: Any,
) -> None:
    *taken, is_causal = others
    _refuse(key_scale, value_scale, is_causal)
    backend.batched_attention.extend(query, key, value, output, k_cache, v_cache, *taken)


# SGLang 0.5.16 passes neither scales nor whether attention is causal. Under speculation it passes
# the batch's own lengths, which lack the drafted tokens (sgl-project/sglang#36430), though it has
# computed the right ones; we put these in, as the 11th and the 9th argument.


def _decode_0_5_16(backend: Any, *arguments: Any) -> None:
    if backend.draft_decode_metadata is not None:
        arguments = (*arguments[:10], backend.draft_decode_metadata[1], *arguments[11:])
    backend.batched_attention.decode(*arguments)


def _extend_0_5_16(backend: Any, *arguments: Any) -> None:
    arguments = (*arguments[:8], backend.extend_metadata[0], *arguments[9:])
    backend.batched_attention.extend(*arguments)


def _refuse(key_scale: float, value_scale: float, is_causal: bool = True) -> None:
    if not is_causal or (key_scale, value_scale) != (1.0, 1.0):
        raise NotImplementedError(
            "lr-sglang's CPU attention is causal and has no scales for keys and values"
        )


def _begin_forward(backend: Any, *args: object, **kwargs: object) -> None:
    backend.batched_attention.new_forward()


def _lay_out_weight(result: None, method: Any, layer: Any) -> None:
    """Keep the weight of a linear layer, or of the vocabulary, as [in, out] in memory, seen as
    [out, in] as before.

    With this layout MKL multiplies one to eight float32 rows 1.5 to 4 times as fast, and a row's
    result is the same with one other row as with thirty.
    """
    if layer.weight.dtype == torch.float32 and layer.weight.dim() == 2:  # 3 in a convolution
        layer.weight.data = layer.weight.data.t().contiguous().t()


def _lay_out_experts(result: None, method: Any, layer: Any) -> None:
    """As ``_lay_out_weight``, each expert's two weights of [experts, out, in]."""
    for weight in (layer.w13_weight, layer.w2_weight):
        if weight.dtype == torch.float32:
            weight.data = weight.data.mT.contiguous().mT
