"""What a controller and the plugin in a server (`lr_sglang.plugin`) tell each other, beside
SGLang's own parameters: of draws, and of lines.

Draws: SGLang passes `custom_params` of a request on to the processes of the server unread. Ours say
how many tokens at the end of its prompt belong to the answer already: its place, from which
`lr_sglang.plugin.seeds` numbers draws, and what penalties count as written
(`lr_sglang.cpu.penalties`). A server without the plugin ignores them.

Lines: a line is what the draft writes ahead of one running request of the target. The controller
posts lines to a server's route; the plugin gives their tokens to the request's next verification. A
line is never needed: one that is late, lost or wrong costs speed only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Of a server on a GPU: set to 1, seeds count there too.
SEEDS_SWITCH = "LR_SGLANG_SEEDS"
# Of the internal state in /server_info of such a server.
SEEDS_FIELD = "lr_sglang_seeds"
PLACE_FIELD = "lr_sglang_place"
WRITTEN_FIELD = "lr_sglang_written"

# Parameters that depend on the tokens before, each with the value that does nothing. Where SGLang
# verifies drafted tokens, it applies to a whole pass what held before it, so that the text depends
# on what was drafted.
RELAXED = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
}
# The same of what it leaves out of its draws there; our plugin's seeded verification does not.
LEFT_OUT = {"min_p": 0.0}

# Version of the messages with lines.
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


def with_seed(params: Mapping[str, Any], seed: int, place: int) -> dict[str, Any]:
    """Sampling parameters with a seed and a place, for ``/generate``.

    Args:
        params: of the request.
        place: number of the prompt's last tokens that belong to the answer.
    """
    made = {**params, "sampling_seed": seed}
    if place:
        made["custom_params"] = {**(params.get("custom_params") or {}), PLACE_FIELD: place}
    return made


def place_of(custom_params: Any) -> int:
    """The place that a request's ``custom_params`` have; 0 where they say nothing valid."""
    return _number(custom_params, PLACE_FIELD)


def written_of(custom_params: Any) -> int:
    """The number of the answer's tokens at the end of a prompt; 0 where they say nothing valid."""
    return _number(custom_params, WRITTEN_FIELD)


def _number(custom_params: Any, name: str) -> int:
    found = custom_params.get(name) if isinstance(custom_params, dict) else None
    return found if isinstance(found, int) and found > 0 else 0


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
