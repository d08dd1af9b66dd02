"""Padded keys and values, kept from one decode step to the next, or from one verification of
drafted tokens.

Without it, sequences that share no prefix spend most of a decode step on gathering their rows.
Between two steps of the same batch only one row per sequence is new, or as many as are drafted.
"""

import torch
from torch import Tensor

MAX_KEPT_BYTES = 1 << 29
SPARE_COLUMNS = 128


class KeptRows:
    """Every layer's padded rectangle of keys and values, [batch, room, kv_heads, dim], for one
    batch.

    It equals the KV cache only while nothing else writes there: call `clear` at every pass that
    does not use it. A step that does not continue the last one (other sequences, other rows, more
    tokens) clears it by itself.
    """

    def __init__(self) -> None:
        self._rows = torch.empty(0, 0, dtype=torch.int64)
        self._seq_lens = torch.empty(0, dtype=torch.int64)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._room = 0
        self._newest = torch.empty(0, dtype=torch.int64)

    def clear(self) -> None:
        """Forget everything; the next step gathers all rows again."""
        self._layers.clear()
        self._seq_lens = self._seq_lens[:0]

    def begin(self, rows: Tensor, seq_lens: Tensor, new: int = 1) -> None:
        """Begin a step over cache `rows` [batch, width], 0 from `seq_lens` [batch] on; `new` per
        sequence are new.
        """
        if not self._follows(rows, seq_lens - new):
            self._layers.clear()
            self._room = -(-rows.shape[1] // SPARE_COLUMNS) * SPARE_COLUMNS + SPARE_COLUMNS
        self._rows = rows
        self._seq_lens = seq_lens.clone()  # SGLang increments it in place
        starts = torch.arange(rows.shape[0]) * self._room + seq_lens - new
        self._newest = (starts.view(-1, 1) + torch.arange(new)).view(-1)

    def read(
        self, layer: int, k_cache: Tensor, v_cache: Tensor, loc: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The layer's keys and values, [batch, width, kv_heads, dim], when the new ones are at
        `loc` in the caches. Keeps them for the next step, where there is room.
        """
        batch, width = self._rows.shape
        caches = (k_cache, v_cache)
        kept = self._layers.get(layer)
        if kept is None:
            kept = tuple(cache.new_zeros((batch, self._room, *cache.shape[1:])) for cache in caches)
            for buffer, cache in zip(kept, caches, strict=True):
                buffer[:, :width] = cache.index_select(0, self._rows.view(-1)).view(
                    batch, width, *cache.shape[1:]
                )
            if self._fits(kept):
                self._layers[layer] = kept
        else:
            for buffer, cache in zip(kept, caches, strict=True):
                buffer.view(-1, *cache.shape[1:]).index_copy_(
                    0, self._newest, cache.index_select(0, loc)
                )
        keys, values = kept
        return keys[:, :width], values[:, :width]

    def _follows(self, rows: Tensor, known: Tensor) -> bool:
        """Whether the first `known` [batch] rows of each sequence, all but the new ones, are those
        of the last step.

        A step may continue from any token of the last one: after a verification, from the last
        accepted token.
        """
        before = self._rows
        width = min(self._rows.shape[1], rows.shape[1])
        if self._seq_lens.shape != known.shape or rows.shape[1] > self._room:
            return False
        if not bool((known <= self._seq_lens).all()):
            return False
        old = torch.arange(width) < known.view(-1, 1)
        return bool(torch.equal(rows[:, :width] * old, before[:, :width] * old))

    def _fits(self, layer: tuple[Tensor, ...]) -> bool:
        bytes_each = sum(buffer.numel() * buffer.element_size() for buffer in layer)
        return bool((len(self._layers) + 1) * bytes_each <= MAX_KEPT_BYTES)
