"""The `sgl_kernel` operators that a server without a GPU needs, in PyTorch.

`convert_weight_packed` is left out on purpose: its presence makes SGLang take
AMX paths in linear layers, norms and MoE, whose kernels do not exist here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import _OpNamespace

from lr_sglang.cpu import gated_delta
from lr_sglang.cpu.attention import BatchedAttention
from lr_sglang.cpu.speculation import cache, trees, verify

NAMESPACE = "sgl_kernel"


def _attend(kind: str, *arguments: object) -> None:
    """BatchedAttention's operator without a plan kept from call to call."""
    getattr(BatchedAttention(), kind)(*arguments)


# The attention operators, each with the arguments that it writes to; the signature gives the rest
# of the schema.
_ATTENTION = {"decode": ("k_cache", "v_cache", "output"), "extend": ("o_extend",)}
_LINKS = ("positions", "retrive_index", "retrive_next_token", "retrive_next_sibling")
_SPECULATION: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (cache.assign_req_to_token_pool_cpu, ("req_to_token",)),
    (cache.assign_extend_cache_locs_cpu, ("out_cache_loc",)),
    (cache.assign_draft_cache_locs_contiguous_cpu, ("out_cache_loc",)),
    (cache.build_draft_decode_metadata_cpu, ()),
    (cache.fill_accept_out_cache_loc_cpu, ("accept_out_cache_loc",)),
    (cache.copy_all_layer_kv_cache_cpu, ()),
    (trees.build_tree_kernel_efficient_cpu, ("tree_mask", *_LINKS)),
    (trees.reconstruct_indices_from_tree_mask_cpu, _LINKS),
    (verify.verify_tree_greedy_cpu, ("predicts", "accept_index", "accept_token_num")),
    (verify.fill_bonus_tokens_cpu, ("bonus_tokens",)),
)
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    f"{kind}_attention_cpu": (
        torch.library.infer_schema(getattr(BatchedAttention(), kind), mutates_args=written),
        partial(_attend, kind),
    )
    for kind, written in _ATTENTION.items()
}
OPERATORS |= {
    function.__name__: (torch.library.infer_schema(function, mutates_args=written), function)
    for function, written in (*_SPECULATION, *gated_delta.GATED_DELTA_OPERATORS)
}

_libraries: list[
    torch.library.Library
] = []  # a Library that is collected takes its operators with it


class MissingOperatorError(AttributeError, NotImplementedError):
    """An sgl_kernel operator that has no CPU version here.

    An AttributeError too, so that SGLang's own `hasattr` checks keep working.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"torch.ops.{NAMESPACE}.{name} has no CPU version in lr-sglang. The chosen model "
            "or option needs a GPU "
            "kernel: use a dense float32 model (Qwen3, Llama) with --attention-backend "
            "intel_amx, or a GPU."
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
        # a CPU build of sgl-kernel may be installed
        if not hasattr(getattr(torch.ops, NAMESPACE), name):
            fragment.define(name + schema)
            fragment.impl(name, function, "CPU")
    getattr(torch.ops, NAMESPACE).__class__ = _Namespace
