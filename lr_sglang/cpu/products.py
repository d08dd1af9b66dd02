"""Matrix products of a decoder's layers, each with its own format of the weight.

Processors without instructions for bfloat16 multiply it three times as slowly as float32 (oneDNN
converts at every product), or not at all. There a weight in bfloat16 is kept as float32. A product
in bfloat16 owns the weight: the layer keeps an empty tensor of the same shape.
"""

import logging
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_ROWS = 4


class Product(Protocol):
    """x [rows, in] times a layer's weight [out, in]; both in one type."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out], in the weight's type."""

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """The residual, float32 [rows, out], plus the product."""


class Float32:
    """A float32 weight, used in place."""

    def __init__(self, linear: Any) -> None:
        self._weight = linear.weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self._weight

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(residual, x, self._weight)


class BFloat16:
    """bfloat16 in oneDNN's own layout.

    By measurement it multiplies one to eight rows in half the time of PyTorch's layout, and a row
    has the same result alone and among others. One to three rows take longer than four (1.4 and 1.0
    ms for 5632 x 2048), so zeros are appended.
    """

    def __init__(self, linear: Any) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(_taken(linear).contiguous(), 1)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows < LEAST_ROWS:
            x = F.pad(x, (0, 0, 0, LEAST_ROWS - rows))
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return made[:rows]

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


class Widened:
    """bfloat16 as float32, by MKL: [in, out] in memory, which is faster for few rows."""

    def __init__(self, linear: Any) -> None:
        self._weight = _taken(linear).t().float().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        return (x.float() @ self._weight).to(x.dtype)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(residual, x.float(), self._weight)


def _taken(linear: Any) -> Tensor:
    weight: Tensor = linear.weight.data
    linear.weight.data = weight.new_zeros(1).expand(weight.shape)
    return weight


def product_of(linear: Any) -> Product:
    """The product of a linear layer without a bias, in float32 or bfloat16."""
    if linear.weight.dtype == torch.float32:
        return Float32(linear)
    return BFloat16(linear) if multiplies_bfloat16() else Widened(linear)


@cache
def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself; a warning is logged if it does not."""
    found = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if not found:
        logging.getLogger(__name__).warning(
            "lr-sglang: this processor is slow in bfloat16; the layers' weights are kept as float32"
        )
    return bool(found)
