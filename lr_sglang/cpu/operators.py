"""The `sgl_kernel` operators that a server without a GPU needs, in PyTorch.

`convert_weight_packed` is left out on purpose: its presence makes SGLang take
AMX paths in linear layers, norms and MoE, whose kernels do not exist here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import _OpNamespace

from lr_sglang.cpu import attention

NAMESPACE = "sgl_kernel"

OPERATORS: dict[str, tuple[str, Callable[..., None]]] = {
    "decode_attention_cpu": (
        "(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) output, Tensor? key, Tensor? value, "
        "Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
        "float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, "
        "Tensor? sinks) -> ()",
        attention.decode_attention_cpu,
    ),
    "extend_attention_cpu": (
        "(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, Tensor(a!) o_extend, Tensor k_buffer, "
        "Tensor v_buffer, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
        "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
        "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, "
        "Tensor? tree_mask) -> ()",
        attention.extend_attention_cpu,
    ),
}

_libraries: list[torch.library.Library] = []  # a Library that is collected takes its operators with it


class MissingOperatorError(AttributeError, NotImplementedError):
    """An sgl_kernel operator that has no CPU version here.

    An AttributeError too, so that SGLang's own `hasattr` checks keep working.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"torch.ops.{NAMESPACE}.{name} has no CPU version in lr-sglang. The chosen model or option needs a GPU "
            f"kernel: use a dense float32 model (Qwen3, Llama) with --attention-backend intel_amx, or a GPU."
        )
        self.operator = name


class _Namespace(_OpNamespace):
    """`torch.ops.sgl_kernel`, with an error that names what is missing."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith("__") or isinstance(error, MissingOperatorError):
                raise
            raise MissingOperatorError(name) from error


def register() -> None:
    """Define what `torch.ops.sgl_kernel` lacks. Safe to call again."""
    if _libraries:
        return
    fragment = torch.library.Library(NAMESPACE, "FRAGMENT")
    _libraries.append(fragment)
    for name, (schema, function) in OPERATORS.items():
        if not hasattr(getattr(torch.ops, NAMESPACE), name):  # a CPU build of sgl-kernel may be installed
            fragment.define(name + schema)
            fragment.impl(name, function, "CPU")
    getattr(torch.ops, NAMESPACE).__class__ = _Namespace
