"""The times that a runtime reports for a request: in its queue, and for its prefill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def waits(meta: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds in the queue and seconds of the prefill, from a runtime's meta_info; None where it does not say.

    SGLang reports them with ``--enable-metrics``: ``queue_time``, and ``forward_entry_time`` and
    ``prefill_finished_time`` as times of day.
    """
    queued = _positive(meta.get("queue_time"))
    began, ended = _positive(meta.get("forward_entry_time")), _positive(meta.get("prefill_finished_time"))
    prefill = ended - began if began and ended and ended >= began else None
    return queued, prefill


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value >= 0 else None
