"""Token layer `fed` in a server's scheduler: SGLang's n-gram layer verifies the tokens of delivered
lines in place of its own guesses.

Every rank of tensor parallelism has one `Feeder`. Each must offer the same tokens at the same
pass, so nothing in it may depend on a clock or on what one rank alone knows.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lr_sglang.plugin.kept_lines import KeptLines
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD, PROTOCOL

logger = logging.getLogger(__name__)

Array: TypeAlias = npt.NDArray[Any]
Drafts: TypeAlias = tuple[Array, Array]  # tokens, and which of them each of them sees
# Marks a message with lines. SGLang's message to add a corpus carries it (see `route`): it is of
# the few that any server passes on to all of its ranks before a pass, and it can hold all that a
# message of ours has.
MARK = "lr_sglang/lines"
NO_IDS = array("i")


class Feeder:
    """The layer in one process.

    Attributes:
        refused: why it does not work in this server; empty if it does.
        draws: how the target's verification draws: with numbers that follow from the request's
            ``seeds``, as plain decoding does, or with ``coins`` of its own.
    """

    def __init__(self) -> None:
        self.refused = ""
        self.draws: Literal["seeds", "coins"] = "coins"
        self._lines = KeptLines()
        self._fed: dict[str, Any] = {}  # requests that have a line, by id
        self._counts = dict.fromkeys(("fed", "unfed", "offered", "late", "messages", "failures"), 0)

    # -- hooks

    def keep(self, plain: Callable[..., Any], scheduler: Any, message: Any) -> Any:
        """Around Scheduler.add_external_corpus: keeps the lines of a message of ours.

        SGLang's own route sends its messages with ``documents`` taken out. Nobody waits for a reply
        to one of ours, so none is returned.
        """
        if message.corpus_id != MARK or message.documents is None:
            return plain(scheduler, message)
        try:
            self._counts["messages"] += 1
            for rid, (place, *ids) in zip(message.documents, message.token_chunks, strict=True):
                self._lines.put(rid, place, ids)
        except Exception:  # noqa: BLE001 - a message must never end a scheduler
            self._failed("a message with lines")
        return None

    def prepare(self, plain: Callable[..., Drafts], worker: Any, batch: Any, *more: Any) -> Drafts:
        """Around NGRAMWorker._prepare_draft_tokens: the tokens that the next pass verifies.

        Each request's are a chain: attention of FlashAttention 3 reads no tree where SGLang's
        breadth is 1.
        """
        tokens, mask = plain(worker, batch, *more)
        try:
            width = worker.draft_token_num
            rows = chains(tokens, mask, width)
            self._feed(worker, batch, rows)
            self._forget_ended(batch)
            seen = np.tri(width, dtype=mask.dtype)
            return rows.reshape(tokens.shape), np.tile(seen, (len(rows), 1)).reshape(mask.shape)
        except Exception:  # noqa: BLE001 - as above
            self._failed("the drafts of a pass")
            return tokens, mask

    def clear(self, result: None, worker: Any, *more: Any) -> None:
        """After NGRAMWorker.clear_cache_pool, which ``/flush_cache`` calls."""
        self._lines.clear()
        self._fed.clear()

    def tell(self, result: Any, scheduler: Any, *more: Any) -> None:
        """After Scheduler.get_internal_state: adds what the layer is, or why it is refused."""
        worker = scheduler.draft_worker
        refused = self.refused
        if not refused and getattr(worker, "ngram_corpus", None) is None:
            refused = "it needs --speculative-algorithm NGRAM"
        if not refused and scheduler.server_args.tokenizer_worker_num > 1:
            refused = "its route is not there with --tokenizer-worker-num above 1"
        result.internal_state[FED_FIELD] = (
            {"protocol": PROTOCOL, "refused": refused}
            if refused
            else {
                "protocol": PROTOCOL,
                "width": int(worker.draft_token_num),
                "draws": self.draws,
                "lines": len(self._lines),
                "pushed_out": self._lines.pushed_out,
                **self._counts,
            }
        )

    # --

    def _feed(self, worker: Any, batch: Any, rows: Array) -> None:
        """Puts the lines' tokens into the rows, which have SGLang's guesses."""
        most = worker.draft_token_num - 1
        padding = array("i", [0]) * most
        each = zip(rows, rows[:, 0].tolist(), batch.reqs, unrecorded(worker, batch), strict=True)
        for row, last, request, more in each:
            try:
                ids = self._following(request, more, last, most)
            except Exception:  # noqa: BLE001 - as above; the others are fed all the same
                self._failed("the line of a request")
                ids = NO_IDS
            self._counts["fed" if ids else "unfed"] += 1
            if ids:
                row[1:] = ids + padding[len(ids) :]
                self._counts["offered"] += len(ids)

    def _following(self, request: Any, more: Sequence[int], last: int, most: int) -> array[int]:
        """The tokens of a request's line that follow what it has written.

        Args:
            more: what it has written beyond its ``output_ids``.
            last: the token from which SGLang goes on: its last one.
        """
        line = self._lines.get(request.rid)
        if line is None:
            return NO_IDS
        own = request.output_ids
        known = len(own)
        count = known + len(more)

        def written(start: int, stop: int) -> list[int]:
            return [*own[start:stop], *more[max(0, start - known) : max(0, stop - known)]]

        if (more or own)[-1] != last:
            raise ValueError(f"request {request.rid} goes on from another token than its last")
        self._fed[request.rid] = request
        self._counts["late"] += line.late(count)
        return line.following(count, written, most)

    def _forget_ended(self, batch: Any) -> None:
        """Forgets the lines of requests that have ended; those of retracted ones stay."""
        running = {request.rid for request in batch.reqs}
        for rid in [rid for rid in self._fed if rid not in running]:
            if self._fed[rid].finished():
                self._lines.erase(rid)
            if self._lines.get(rid) is None:
                del self._fed[rid]

    def _failed(self, where: str) -> None:
        """Counts an exception; the first is logged."""
        self._counts["failures"] += 1
        if self._counts["failures"] == 1:
            logger.exception("lr-sglang: token layer fed: %s; SGLang's own guesses are used", where)


def chains(tokens: Array, mask: Array, width: int) -> Array:
    """The longest chain of each request's tree of guesses, from its root, filled up with 0.

    Args:
        tokens: [requests * width].
        mask: [requests * width * width], 1 where a node sees another: its parents and itself.

    Returns:
        A new array [requests, width].
    """
    rows = tokens.reshape(-1, width)
    seen = mask.reshape(-1, width, width).astype(bool)
    deepest = seen.sum(-1).argmax(-1)
    path = seen[np.arange(len(rows)), deepest]
    order = np.argsort(~path, axis=-1, kind="stable")
    found = np.take_along_axis(rows, order, axis=-1)
    found[np.arange(width) >= path.sum(-1, keepdims=True)] = 0
    return found


def unrecorded(worker: Any, batch: Any) -> list[Sequence[int]]:
    """What each request has written beyond its ``output_ids``: with the overlap schedule the tokens
    of the last pass, which SGLang records while the next one runs.

    To be called after the worker's own preparation, which fetches them from the device. Batches
    with a grammar are recorded first; SGLang 0.5.16 has the tokens there too, but they are recorded
    already.
    """
    needs_sync = getattr(batch, "grammar_needs_sync", None)
    recorded = batch.has_grammar if needs_sync is None else needs_sync()
    if recorded or not worker.enable_overlap:
        return [()] * len(batch.reqs)
    width = worker.draft_token_num
    return [
        worker.prev_token_ids[i * width : i * width + count]
        for i, count in enumerate(worker.prev_accept_lens)
    ]
