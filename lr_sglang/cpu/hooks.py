"""What we change in SGLang on a CPU, through its own HookRegistry; ``sglang_api.server`` says where
and why.
"""

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lr_sglang.cpu.attention import BatchedAttention
from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import release, server
from lr_sglang.sglang_api.need import Need, check


def install() -> None:
    """Register all hooks; SGLang applies them when every plugin has been called.

    Raises SystemExit where an untested SGLang lacks what they need: it would log any other
    exception and go on without.
    """
    if not release.is_tested(release.version()):
        try:
            check(server.NEEDS)
        except SetupError as error:
            raise SystemExit(f"lr-sglang: {error}") from error
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lr_sglang.cpu import qwen3, seeds
    from lr_sglang.cpu.speculation import sampling

    _allow_intel_amx()
    hooks: tuple[tuple[Need, Callable[..., Any], Any], ...] = (
        (server.LINEAR, _lay_out_weight, HookType.AFTER),
        (server.FORWARD, qwen3.forward_qwen3, HookType.AROUND),
        (server.BACKEND_MADE, _use_batched_attention, HookType.AFTER),
        (server.BACKEND_BEGINS, _begin_forward, HookType.BEFORE),
        (server.SEEDS, seeds.carry_seeds, HookType.AFTER),
        (server.SAMPLE, seeds.sample_with_seeds, HookType.AROUND),
        (server.VERIFY, sampling.sample_and_verify, HookType.AROUND),
        (server.SPECULATES, sampling.refuse_processors, HookType.AFTER),
        (server.SCALE, sampling.scale_penalties, HookType.REPLACE),
    )
    if server.BUILD.applies():
        hooks += ((server.BUILD, load_alone, HookType.AROUND),)
    if server.GRAMMAR.applies():
        hooks += ((server.GRAMMAR, mask_on_cpu, HookType.AFTER),)
    for need, hook, kind in hooks:
        HookRegistry.register(need.name, hook, kind)


def _allow_intel_amx() -> None:
    """Keep `--attention-backend intel_amx`: ServerArgs would turn it into torch_native.

    Only the check for ServerArgs is changed. For all other modules it stays negative, so that
    linear layers and norms keep their PyTorch forward; HookRegistry would change it in every
    module.
    """
    from sglang.srt import runtime_context
    from sglang.srt.arg_groups import overrides

    if server.PLATFORM.applies():
        runtime_context.override_platform(has_amx=True).install()
    else:
        overrides.cpu_has_amx_support = lambda: True


def _use_batched_attention(result: None, backend: Any, *args: object, **kwargs: object) -> None:
    """One plan per forward pass instead of one per layer, and no dispatcher in between."""
    backend.batched_attention = BatchedAttention()
    backend.decode_attention_fwd = partial(_decode, backend)
    backend.extend_attention_fwd = partial(_extend, backend)


# SGLang 0.5.23 passes three more arguments: two scales of an 8-bit KV cache, and whether attention
# is causal. 0.5.16 passes the batch's own lengths under speculation, which lack the drafted tokens
# (sgl-project/sglang#36430), though it has computed the right ones; we put these in. `seq_lens` is
# the 11th and the 9th argument.


def _decode(backend: Any, *arguments: Any) -> None:
    if len(arguments) == 19:
        _refuse(arguments[3], arguments[4])
        arguments = (*arguments[:3], *arguments[5:])
    elif backend.draft_decode_metadata is not None:
        arguments = (*arguments[:10], backend.draft_decode_metadata[1], *arguments[11:])
    backend.batched_attention.decode(*arguments)


def _extend(backend: Any, *arguments: Any) -> None:
    if len(arguments) == 22:
        _refuse(arguments[6], arguments[7], arguments[21])
        arguments = (*arguments[:6], *arguments[8:21])
    else:
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
    """Keep a linear layer's weight as [in, out] in memory, seen as [out, in] as before.

    With this layout MKL multiplies one to eight float32 rows 1.5 to 4 times as fast, and a row's
    result is the same with one other row as with thirty.
    """
    if layer.weight.dtype == torch.float32:
        layer.weight.data = layer.weight.data.t().contiguous().t()


# For SGLang 0.5.16 only.


def load_alone(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around load_jit, with which a server compiles n-gram speculation on first use: one server at
    a time.

    load_jit loads a library as soon as its file exists, while the linker of another server may
    still be writing it.
    """
    folder = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lr-sglang.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        return load(*args, **kwargs)


def mask_on_cpu(backend: Any, server_args: Any, *args: object, **kwargs: object) -> None:
    """After create_grammar_backend: let xgrammar's own function apply the masks of its grammars.

    A grammar is a regex or a JSON schema. SGLang applies their masks with a GPU kernel, and a CPU
    server ends at the first request that has one. The classes with the methods are hooked here and
    not at the start, because importing them takes two seconds in every process.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if backend is not None and server_args.grammar_backend == "xgrammar":
        for need in server.MASKS:
            HookRegistry.register(need.name, apply_mask, HookType.REPLACE)
        HookRegistry.apply_hooks()


def apply_mask(*owner: object, logits: Tensor, vocab_mask: Tensor) -> None:
    """Set the logits [rows, vocabulary] of tokens that are not allowed to minus infinity.

    vocab_mask: [rows, vocabulary / 32] int32, a bit for every token.
    """
    import xgrammar

    xgrammar.apply_token_bitmask_inplace(logits, vocab_mask)
