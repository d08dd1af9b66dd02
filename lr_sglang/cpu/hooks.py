"""What we change in SGLang 0.5.16 on a CPU, through its own HookRegistry."""

from typing import Any

from lr_sglang.cpu.attention import BatchedAttention

BACKEND = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has been called."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lr_sglang.cpu import seeds

    _allow_intel_amx()
    HookRegistry.register(f"{BACKEND}.__init__", _use_batched_attention, HookType.AFTER)
    HookRegistry.register(f"{BACKEND}.init_forward_metadata", _begin_forward, HookType.BEFORE)
    HookRegistry.register(seeds.BATCH_TARGET, seeds.carry_seeds, HookType.AFTER)
    HookRegistry.register(seeds.SAMPLE_TARGET, seeds.sample_with_seeds, HookType.AROUND)


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
    backend.decode_attention_fwd = backend.batched_attention.decode
    backend.extend_attention_fwd = backend.batched_attention.extend


def _begin_forward(backend: Any, *args: object, **kwargs: object) -> None:
    backend.batched_attention.new_forward()
