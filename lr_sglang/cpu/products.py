"""Matrix products of a decoder's layers, each with its own format of the weight, and the choice
among them.

For weights in bfloat16, a short test finds the fastest on this processor. Processors without
bfloat16 multiply it three times as slowly as float32 (oneDNN converts at every product), or not at
all. There a weight is kept as float32, or as 8-bit numbers, which are less exact, if these are
clearly faster. The product then owns the weight: the layer keeps an empty tensor of the same shape.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_ROWS = 4
# Rows of a batch in the test: one branch, several branches, and several with drafted tokens.
ROWS = (1, 8, 24)
SHAPE = 5632, 2048
COPIES = 3  # of a matrix, used in turns, so that it is not read from the processor's cache
CLEARLY = 0.8


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


class Int8:
    """bfloat16 as 8-bit numbers with a scale for each output: a quarter of float32's bytes,
    multiplied in float32.
    """

    def __init__(self, linear: Any) -> None:
        weight = _taken(linear).float()
        # The scale is rounded before the weight is divided by it.
        self._scale = (weight.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        self._weight = (
            (weight / self._scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        )

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x.contiguous(), self._weight, self._scale)

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)


def _taken(linear: Any) -> Tensor:
    weight: Tensor = linear.weight.data
    linear.weight.data = weight.new_zeros(1).expand(weight.shape)
    return weight


Kind = type[BFloat16] | type[Widened] | type[Int8]
NAMES: dict[Kind, str] = {BFloat16: "bfloat16", Widened: "float32", Int8: "8-bit numbers"}


def of(linear: Any) -> Product:
    """The product of a linear layer without a bias, in float32 or bfloat16."""
    if linear.weight.dtype == torch.float32:
        return Float32(linear)
    kind = for_bfloat16()
    # PyTorch's 8-bit product reads past the end of other rows.
    return Widened(linear) if kind is Int8 and linear.weight.shape[1] % 32 else kind(linear)


@cache
def for_bfloat16() -> Kind:
    """The kind of product for weights in bfloat16, tested once in a process; logs it if it is not
    ``BFloat16``.
    """
    seconds = measured()
    kind = chosen(seconds)
    if kind is not BFloat16:
        found = ", ".join(f"{NAMES[one]} {1000 * time:.1f} ms" for one, time in seconds.items())
        logging.getLogger(__name__).warning(
            "lr-sglang: this processor is slow in bfloat16; the layers' weights are kept as %s "
            "(%s)",
            NAMES[kind],
            found,
        )
    return kind


def chosen(seconds: Mapping[Kind, float]) -> Kind:
    """``BFloat16`` if it is faster than ``Widened``; else ``Widened``, unless ``Int8`` is clearly
    faster.
    """
    wide = seconds[Widened]
    if seconds.get(BFloat16, wide) < wide:
        return BFloat16
    return Int8 if seconds[Int8] < CLEARLY * wide else Widened


def measured(batches: Sequence[int] = ROWS) -> dict[Kind, float]:
    """Seconds that each kind takes for one product with each number of rows, summed; a second of
    work in all.
    """
    kinds: list[Kind] = [Widened, Int8]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        kinds.append(BFloat16)
    made = {kind: [_of_ones(kind) for _ in range(COPIES)] for kind in kinds}
    total = dict.fromkeys(kinds, 0.0)
    for rows in batches:
        x = torch.ones(rows, SHAPE[1], dtype=torch.bfloat16)
        # In turns and in processor time, so that other work on the machine has no influence.
        times = [
            [_seconds(made[kind][turn % COPIES], x) for kind in kinds] for turn in range(3 * COPIES)
        ]
        for kind, seconds in zip(kinds, map(min, zip(*times, strict=True)), strict=True):
            total[kind] += seconds
    return total


def _of_ones(kind: Kind) -> Product:
    return kind(SimpleNamespace(weight=torch.ones(SHAPE, dtype=torch.bfloat16)))


def _seconds(product: Product, x: Tensor) -> float:
    began = time.thread_time()
    product(x)
    return time.thread_time() - began
