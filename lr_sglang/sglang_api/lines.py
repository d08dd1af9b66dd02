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
SWITCH = "LR_SGLANG_FED"
# Of the internal state in /server_info: what the layer is, or why it is refused.
FIELD = "lr_sglang_fed"
# Of a request's ``custom_params``: a line from the request's first token on.
FIRST = "lr_sglang_line"

MAX_TOKENS = 4096  # of a line
MAX_LINES = 1024  # that a server keeps; the one that was delivered longest ago makes room
MAX_MESSAGE_LINES = 1024
MAX_MESSAGE_BYTES = 1 << 20
MAX_ID = 256  # characters of a request's id


class Line(NamedTuple):
    """One line of a message: from the request's own token ``place`` on (0 is the first that it
    generates) it is ``ids``.
    """

    rid: str
    place: int
    ids: Sequence[int]


class Message(NamedTuple):
    """The lines of a message that a server takes, and the others' ids with the reason."""

    lines: list[Line]
    refused: list[tuple[str, str]]


def read_message(document: Any, vocabulary: int) -> Message:
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
    message = Message([], [])
    for number, entry in enumerate(listed):
        if not _is_line(entry):
            raise ValueError(f"lines[{number}] is not [request id, place, [token id, ...]]")
        line = Line(*entry)
        if fault := _fault(line, vocabulary):
            message.refused.append((line.rid[:MAX_ID], fault))
        else:
            message.lines.append(line)
    return message


def _is_line(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    rid, place, ids = entry
    # bool is an int in Python, and JSON has both
    return isinstance(rid, str) and type(place) is int and are_ids(ids)


def are_ids(ids: Any) -> bool:
    """Whether it is a list of integers."""
    return isinstance(ids, list) and all(type(one) is int for one in ids)


def _fault(line: Line, vocabulary: int) -> str:
    if not line.rid or len(line.rid) > MAX_ID:
        return f"its request id has {len(line.rid)} characters; 1 to {MAX_ID} are possible"
    if not 0 <= line.place < 1 << 31:
        return f"its place is {line.place}"
    return fault_of(line.ids, vocabulary)


def fault_of(ids: Sequence[int], vocabulary: int) -> str:
    """Why these integers are no line; empty if they are one."""
    if len(ids) > MAX_TOKENS:
        return f"it has {len(ids)} tokens; at most {MAX_TOKENS}"
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        return f"a token id is outside of the vocabulary of {vocabulary}"
    return ""
