"""Matrix products of a decoder's layers: float32 by MKL, bfloat16 by oneDNN with weights that are laid out once."""

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Product(Protocol):
    """x [rows, in] times a layer's weight."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, out], in the weight's type."""

    def added(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The residual, float32 [rows, out], plus the product."""


class Float32:
    """Reads a weight [out, in] where it lies."""

    def __init__(self, linear: Any) -> None:
        self._weight = linear.weight.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self._weight

    def added(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(residual, x, self._weight)


class BFloat16:
    """Takes a weight over, in oneDNN's own layout.

    By measurement it multiplies one to eight rows in half the time of PyTorch's layout, and a row has the same result
    alone and among others. What is left of the layer's weight has its shape, and no memory.
    """

    def __init__(self, linear: Any) -> None:
        weight = linear.weight.data
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
        linear.weight.data = weight.new_zeros(1).expand(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return made

    def added(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


KINDS: dict[torch.dtype, Callable[[Any], Product]] = {torch.float32: Float32, torch.bfloat16: BFloat16}


def has(dtype: torch.dtype) -> bool:
    """Whether there is a product of this type, and this processor computes it at its full speed."""
    return dtype in KINDS and (dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def of(linear: Any) -> Product:
    """The product of a linear layer without a bias."""
    return KINDS[linear.weight.dtype](linear)
