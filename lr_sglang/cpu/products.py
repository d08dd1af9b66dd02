"""Matrix products of a decoder's layers, each with its own way to keep a weight.

A product of a model in bfloat16 takes its weight over: what is left of the layer's has its shape, and no memory.
"""

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
    """Reads a float32 weight where it lies."""

    def __init__(self, linear: Any) -> None:
        self._weight = linear.weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self._weight

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(residual, x, self._weight)


class BFloat16:
    """bfloat16 in oneDNN's own layout.

    By measurement it multiplies one to eight rows in half the time of PyTorch's layout, and a row has the same result
    alone and among others. One to three rows take longer than four (1.4 and 1.0 ms for 5632 x 2048), so zeros are
    appended.
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


class Int8:
    """bfloat16 as 8-bit numbers with a scale for each output: a quarter of float32's bytes, multiplied in float32."""

    def __init__(self, linear: Any) -> None:
        weight = _taken(linear).float()
        # The scale is rounded first, so that the numbers belong to it as it is.
        self._scale = (weight.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        self._weight = (weight / self._scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x.contiguous(), self._weight, self._scale)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


def _taken(linear: Any) -> Tensor:
    weight: Tensor = linear.weight.data
    linear.weight.data = weight.new_zeros(1).expand(weight.shape)
    return weight
