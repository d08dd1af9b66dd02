"""Which product computes a model's layers: for bfloat16, the one that a short test finds fastest on this processor.

Processors without bfloat16 multiply it three times as slowly as float32 (oneDNN converts at every product), or not at
all. There a weight is kept as float32, or as 8-bit numbers where that is clearly faster: it is coarser.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lr_sglang.cpu.products import BFloat16, Float32, Int8, Product, Widened

# Of a batch: one branch, several, and several with drafted tokens.
ROWS = (1, 8, 24)
SHAPE = 5632, 2048
COPIES = 3  # of a matrix, in turns: together they do not fit into a cache
CLEARLY = 0.8

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
    """The kind for weights in bfloat16, tested once in a process; the log says if it is another than theirs."""
    seconds = measured()
    kind = chosen(seconds)
    if kind is not BFloat16:
        found = ", ".join(f"{NAMES[one]} {1000 * time:.1f} ms" for one, time in seconds.items())
        logging.getLogger(__name__).warning(
            "lr-sglang: this processor is slow in bfloat16; the layers' weights are kept as %s (%s)", NAMES[kind], found
        )
    return kind


def chosen(seconds: Mapping[Kind, float]) -> Kind:
    """What was asked for where it is the fastest, else float32, unless 8 bits are clearly faster."""
    wide = seconds[Widened]
    if seconds.get(BFloat16, wide) < wide:
        return BFloat16
    return Int8 if seconds[Int8] < CLEARLY * wide else Widened


def measured(batches: Sequence[int] = ROWS) -> dict[Kind, float]:
    """Seconds that each kind takes for one product with each number of rows, summed; a second of work in all."""
    kinds: list[Kind] = [Widened, Int8]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        kinds.append(BFloat16)
    made = {kind: [_of_ones(kind) for _ in range(COPIES)] for kind in kinds}
    total = dict.fromkeys(kinds, 0.0)
    for rows in batches:
        x = torch.ones(rows, SHAPE[1], dtype=torch.bfloat16)
        # In turns, and in time of the processor: other work on the machine shall not decide.
        times = [[_seconds(made[kind][turn % COPIES], x) for kind in kinds] for turn in range(3 * COPIES)]
        for kind, seconds in zip(kinds, map(min, zip(*times, strict=True)), strict=True):
            total[kind] += seconds
    return total


def _of_ones(kind: Kind) -> Product:
    return kind(SimpleNamespace(weight=torch.ones(SHAPE, dtype=torch.bfloat16)))


def _seconds(product: Product, x: Tensor) -> float:
    began = time.thread_time()
    product(x)
    return time.thread_time() - began
