"""What we change in SGLang 0.5.16 on a CPU, through its own HookRegistry."""

from functools import partial
from typing import Any

import torch

from lr_sglang.cpu.attention import BatchedAttention

BACKEND = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"

LINEAR = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.process_weights_after_loading"


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has been called."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lr_sglang.cpu import builds, grammar, qwen3, seeds
    from lr_sglang.cpu.speculation import sampling

    _allow_intel_amx()
    HookRegistry.register(builds.TARGET, builds.load_alone, HookType.AROUND)
    HookRegistry.register(LINEAR, _lay_out_weight, HookType.AFTER)
    HookRegistry.register(qwen3.TARGET, qwen3.forward_qwen3, HookType.AROUND)
    HookRegistry.register(f"{BACKEND}.__init__", _use_batched_attention, HookType.AFTER)
    HookRegistry.register(f"{BACKEND}.init_forward_metadata", _begin_forward, HookType.BEFORE)
    HookRegistry.register(seeds.BATCH_TARGET, seeds.carry_seeds, HookType.AFTER)
    HookRegistry.register(seeds.SAMPLE_TARGET, seeds.sample_with_seeds, HookType.AROUND)
    HookRegistry.register(sampling.SAMPLE_TARGET, sampling.sample_and_verify, HookType.AROUND)
    HookRegistry.register(sampling.SETTINGS_TARGET, sampling.refuse_processors, HookType.AFTER)
    HookRegistry.register(sampling.SCALE_TARGET, sampling.scale_penalties, HookType.REPLACE)
    HookRegistry.register(grammar.CREATE_TARGET, grammar.mask_on_cpu, HookType.AFTER)


def _allow_intel_amx() -> None:
    """Keep `--attention-backend intel_amx`: ServerArgs would turn it into torch_native.

    Only this module's name is bound again. Everywhere else the answer stays no, so that linear layers and
    norms keep their PyTorch forward; HookRegistry would change it in every module.
    """
    from sglang.srt.arg_groups import overrides

    overrides.cpu_has_amx_support = lambda: True


def _use_batched_attention(result: None, backend: Any, *args: object, **kwargs: object) -> None:
    """One plan per forward pass instead of one per layer, and no dispatcher in between."""
    backend.batched_attention = BatchedAttention()
    backend.decode_attention_fwd = partial(_decode, backend)
    backend.extend_attention_fwd = partial(_extend, backend)


# Under speculation SGLang works out the lengths for a pass and then hands over the batch's own, which leave the drafted
# tokens out (sgl-project/sglang#36430). These two put the right ones in; `seq_lens` is the 11th and the 9th argument.


def _decode(backend: Any, *arguments: Any) -> None:
    drafting = backend.draft_decode_metadata
    if drafting is not None:
        arguments = (*arguments[:10], drafting[1], *arguments[11:])
    backend.batched_attention.decode(*arguments)


def _extend(backend: Any, *arguments: Any) -> None:
    backend.batched_attention.extend(*arguments[:8], backend.extend_metadata[0], *arguments[9:])


def _begin_forward(backend: Any, *args: object, **kwargs: object) -> None:
    backend.batched_attention.new_forward()


def _lay_out_weight(result: None, method: Any, layer: Any) -> None:
    """Keep a linear layer's weight as [in, out] in memory, seen as [out, in] as before.

    MKL multiplies one to eight float32 rows 1.5 to 4 times as fast so, and then gives a row the same result
    whether it comes with one other row or thirty.
    """
    if layer.weight.dtype == torch.float32:
        layer.weight.data = layer.weight.data.t().contiguous().t()
