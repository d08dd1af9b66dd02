"""Grammars (a regex, a JSON schema) without a GPU.

SGLang 0.5.16 applies the masks of xgrammar, its default, with a GPU kernel, and a CPU server ends at the first request
that has a grammar. xgrammar itself has the operation for a CPU.
"""

from typing import Any

from torch import Tensor

from lr_sglang.sglang_api import server


def mask_on_cpu(backend: Any, server_args: Any, *args: object, **kwargs: object) -> None:
    """After create_grammar_backend: let xgrammar's own function apply the masks of its grammars.

    The classes whose methods are meant are not hooked before: importing them takes two seconds, in every process.
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
