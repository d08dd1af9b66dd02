"""Padded keys and values, kept from one decode step to the next.

Sequences that share nothing spend most of a decode step in gathering their rows again. Between two steps of the
same batch only one row per sequence is new.
"""

import torch

from lr_sglang.cpu.decode import Padded

MOST_BYTES = 1 << 29
SPARE = 128


class KeptRows:
    """Every layer's padded rectangle of keys and values, [batch, room, kv_heads, dim], for one batch.

    It stands for the KV cache only while nothing else writes there: `clear` it at every extend step. A step
    that does not follow from the last one (other sequences, other rows, not one token more) clears it by itself.
    """

    def __init__(self) -> None:
        self._rows = torch.empty(0, 0, dtype=torch.int64)
        self._seq_lens = torch.empty(0, dtype=torch.int64)
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._room = 0
        self._newest = torch.empty(0, dtype=torch.int64)

    def clear(self) -> None:
        """Forget everything; the next step gathers anew."""
        self._layers.clear()
        self._seq_lens = self._seq_lens[:0]

    def begin(self, plan: Padded, seq_lens: torch.Tensor) -> None:
        """Begin a step of `plan`, in which `seq_lens` [batch] counts the new token."""
        rows = plan.rows.view(seq_lens.shape[0], -1)
        if not self._follows(rows, seq_lens):
            self._layers.clear()
            self._room = -(-rows.shape[1] // SPARE) * SPARE + SPARE
        self._rows, self._seq_lens = rows, seq_lens.clone()  # SGLang counts in place
        self._newest = torch.arange(rows.shape[0]) * self._room + seq_lens - 1

    def read(
        self, layer: int, plan: Padded, k_cache: torch.Tensor, v_cache: torch.Tensor, loc: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's keys and values, [batch, width, kv_heads, dim], when the new ones are at `loc` in the caches."""
        batch, width = self._rows.shape
        caches = (k_cache, v_cache)
        kept = self._layers.get(layer)
        if kept is None:
            kept = tuple(cache.new_zeros((batch, self._room, *cache.shape[1:])) for cache in caches)
            for buffer, cache in zip(kept, caches, strict=True):
                buffer[:, :width] = cache.index_select(0, plan.rows).view(batch, width, *cache.shape[1:])
            if self._fits(kept):
                self._layers[layer] = kept
        else:
            for buffer, cache in zip(kept, caches, strict=True):
                buffer.view(-1, *cache.shape[1:]).index_copy_(0, self._newest, cache.index_select(0, loc))
        keys, values = kept
        return keys[:, :width], values[:, :width]

    def _follows(self, rows: torch.Tensor, seq_lens: torch.Tensor) -> bool:
        before, width = self._rows, self._rows.shape[1]
        if self._seq_lens.shape != seq_lens.shape or not width <= rows.shape[1] <= self._room:
            return False
        if not torch.equal(self._seq_lens + 1, seq_lens):
            return False
        known = torch.arange(width) < self._seq_lens.view(-1, 1)
        return torch.equal(rows[:, :width] * known, before)

    def _fits(self, layer: tuple[torch.Tensor, ...]) -> bool:
        bytes_each = sum(buffer.numel() * buffer.element_size() for buffer in layer)
        return (len(self._layers) + 1) * bytes_each <= MOST_BYTES
