"""What a request says about its draws, besides SGLang's `sampling_seed` and penalties.

SGLang passes `custom_params` of a request on to the processes of the server unread. Ours say how
many tokens at the end of its prompt belong to the answer already: its place, from which the plugin
of a server (`lr_sglang.plugin.seeds`) numbers draws, and what penalties count as written
(`lr_sglang.cpu.penalties`). A server without the plugin ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of a server on a GPU: set to 1, seeds count there too.
SEEDS_SWITCH = "LR_SGLANG_SEEDS"
# Of the internal state in /server_info of such a server.
SEEDS_FIELD = "lr_sglang_seeds"
PLACE = "lr_sglang_place"
WRITTEN = "lr_sglang_written"

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


def seeded(params: Mapping[str, Any], seed: int, place: int) -> dict[str, Any]:
    """Sampling parameters with a seed and a place, for ``/generate``.

    Args:
        params: of the request.
        place: number of the prompt's last tokens that belong to the answer.
    """
    made = {**params, "sampling_seed": seed}
    if place:
        made["custom_params"] = {**(params.get("custom_params") or {}), PLACE: place}
    return made


def place_of(custom_params: Any) -> int:
    """The place that a request's ``custom_params`` have; 0 where they say nothing valid."""
    return _number(custom_params, PLACE)


def written_of(custom_params: Any) -> int:
    """The number of the answer's tokens at the end of a prompt; 0 where they say nothing valid."""
    return _number(custom_params, WRITTEN)


def _number(custom_params: Any, name: str) -> int:
    found = custom_params.get(name) if isinstance(custom_params, dict) else None
    return found if isinstance(found, int) and found > 0 else 0
