"""Whether an answer was looked ahead for: branches of the target that were under way at the same
time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

# on a busy machine the drafts of a short answer may all be late, and then nothing could overlap
ANSWERS = 5

Span = tuple[int, float, float]  # a position, and the seconds when its branch was begun and written


def of_record(record: Mapping[str, Any]) -> bool:
    """By the branches of a record."""
    branches = [
        one for one in record["branches"] if one["role"] == "target" and one["ended"] is not None
    ]
    return _overlap((one["position"], one["started"], one["ended"]) for one in branches)


def of_trace(events: Iterable[Mapping[str, Any]]) -> bool:
    """By the events that an endpoint tells, as plain JSON."""
    begun: dict[int, float] = {}
    spans: list[Span] = []
    for event in events:
        if event.get("role") == "target" and event["kind"] == "begun":
            begun[event["prefix"]] = event["seconds"]
        elif event["kind"] == "written":
            spans.append((event["position"], begun[event["prefix"]], event["seconds"]))
    return _overlap(spans)


def _overlap(spans: Iterable[Span]) -> bool:
    """Whether one of them was begun before an earlier position was written."""
    known = list(spans)
    return any(
        later > earlier and begun < written
        for earlier, _, written in known
        for later, begun, _ in known
    )
