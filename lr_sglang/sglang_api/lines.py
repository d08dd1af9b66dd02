"""What a controller and the plugin in a server tell each other of lines, version 1.

A line is what the draft writes ahead of one running request of the target. The controller posts
lines to a server's route; the plugin (`lr_sglang.plugin`) gives their tokens to the request's next
verification. A line is never needed: one that is late, lost or wrong costs speed only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

PROTOCOL = 1
ROUTE = "/lr_sglang/lines"
# Of a server: set to 1, it turns the layer on.
FED_SWITCH = "LR_SGLANG_FED"
# Of the internal state in /server_info: what the layer is, or why it is refused.
FED_FIELD = "lr_sglang_fed"

MAX_TOKENS = 4096  # of a line
MAX_LINES = 1024  # that a server keeps; the one that was delivered longest ago makes room
MAX_MESSAGE_LINES = 1024
MAX_MESSAGE_BYTES = 1 << 20
MAX_ID = 256  # characters of a request's id


class Delivery(NamedTuple):
    """One entry of a message: from the request's own token ``place`` on (0 is the first that it
    generates) its line is ``ids``.
    """

    rid: str
    place: int
    ids: Sequence[int]


class Deliveries(NamedTuple):
    """What a server takes of a message, and the ids of the others' requests with the reason."""

    taken: list[Delivery]
    refused: list[tuple[str, str]]


def read_deliveries(document: Any, vocabulary: int) -> Deliveries:
    """Checks a message, as it comes from JSON.

    Args:
        vocabulary: number of token ids of the server's model.

    Raises:
        ValueError: it is not ``{"lines": [[rid, place, [id, ...]], ...]}``; says what is wrong.
    """
    listed = document.get("lines") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError('the body is not an object with a list "lines"')
    if len(listed) > MAX_MESSAGE_LINES:
        raise ValueError(f"{len(listed)} lines in a message; at most {MAX_MESSAGE_LINES}")
    found = Deliveries([], [])
    for number, entry in enumerate(listed):
        if not _is_delivery(entry):
            raise ValueError(f"lines[{number}] is not [request id, place, [token id, ...]]")
        delivery = Delivery(*entry)
        if fault := _fault(delivery, vocabulary):
            found.refused.append((delivery.rid[:MAX_ID], fault))
        else:
            found.taken.append(delivery)
    return found


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix of two sequences of one type: a list equals no tuple."""
    low = 0
    high = min(len(a), len(b))
    if a[:high] == b[:high]:  # the usual case
        return high
    while low < high:  # comparing slices is fast
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_delivery(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    rid, place, ids = entry
    if not isinstance(rid, str) or not isinstance(ids, list):
        return False
    return all(type(one) is int for one in (place, *ids))  # JSON has bool too, which is an int


def _fault(one: Delivery, vocabulary: int) -> str:
    if not one.rid or len(one.rid) > MAX_ID:
        return f"its request id has {len(one.rid)} characters; 1 to {MAX_ID} are possible"
    if not 0 <= one.place < 1 << 31:
        return f"its place is {one.place}"
    if len(one.ids) > MAX_TOKENS:
        return f"it has {len(one.ids)} tokens; at most {MAX_TOKENS}"
    if one.ids and (min(one.ids) < 0 or max(one.ids) >= vocabulary):
        return f"a token id is outside of the vocabulary of {vocabulary}"
    return ""
