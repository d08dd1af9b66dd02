"""How much a server holds, as its own documents say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes.launching import probe


@dataclass(frozen=True)
class Room:
    """Tokens of prompt and answer together; None is not known.

    Attributes:
        held: that the KV memory holds.
        context: that the model itself can read.
    """

    held: int | None = None
    context: int | None = None

    @property
    def tokens(self) -> int | None:
        """The lesser of the two."""
        return min((one for one in (self.held, self.context) if one is not None), default=None)


def room(url: str, api_key: str = "") -> Room:
    """Asks a server; what it does not tell, as a router does not, is not known."""
    try:
        info = probe.document(url, "/server_info", api_key=api_key, timeout=30.0)
        models = probe.document(url, "/v1/models", api_key=api_key, timeout=30.0)
        context = models["data"][0].get("max_model_len")
        return Room(held(info), context if isinstance(context, int) else None)
    except (LookaheadError, LookupError, TypeError, AttributeError):
        return Room()


def held(info: Mapping[str, Any]) -> int | None:
    """Tokens that the runtime's KV memory holds."""
    found = info.get("max_total_num_tokens") or state(info).get("max_total_num_tokens")
    return found if isinstance(found, int) else None


def slots(info: Mapping[str, Any]) -> int | None:
    """The number of requests that all replicas of the runtime run at a time, as it reports."""
    each = state(info).get("effective_max_running_requests_per_dp")
    return each * max(1, int(info.get("dp_size") or 1)) if isinstance(each, int) else None


def state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of its scheduler, the first where it has replicas."""
    states = info.get("internal_states") or [{}]
    return states[0] if isinstance(states[0], Mapping) else {}
