"""The token layer `fed` of a runtime, as its servers report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lr_sglang.sglang_api.lines import FED_FIELD, PROTOCOL


@dataclass(frozen=True)
class FedLayer:
    """What a runtime verifies that takes lines (`Client.deliver`).

    Attributes:
        width: tokens of one verification: the one from which it goes on, and those of a line.
        draws: how the verification draws: with the numbers of the request's ``seeds``, as plain
            decoding does, or with ``coins`` of its own.
    """

    width: int
    draws: Literal["seeds", "coins"]


def fed_layer(states: Sequence[Mapping[str, Any]]) -> tuple[FedLayer | None, str]:
    """The layer that all servers of a runtime have, and why it cannot be used; empty if it can, or
    if no server has it.

    Args:
        states: the internal state of each server.
    """
    told = [state.get(FED_FIELD) for state in states]
    if not any(told):
        return None, ""
    if not all(isinstance(one, Mapping) for one in told):
        return None, "only some of its servers have token layer fed"
    layers = [dict(one) for one in told if isinstance(one, Mapping)]
    for layer in layers:
        if layer.get("protocol") != PROTOCOL:
            version = layer.get("protocol")
            return None, (
                f"its token layer fed speaks version {version} of the protocol, and this is "
                f"version {PROTOCOL}: install the same release of lr-sglang at both ends"
            )
        if refused := layer.get("refused"):
            return None, f"its token layer fed is refused: {refused}"
    seeds = all(layer.get("draws") == "seeds" for layer in layers)
    width = min(int(layer.get("width") or 1) for layer in layers)
    return FedLayer(width, "seeds" if seeds else "coins"), ""
