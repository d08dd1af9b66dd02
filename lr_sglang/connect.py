"""From runtimes that are ready to backends that run programs on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lr_sglang.backend import RuntimeBackend
from lr_sglang.chat import load_tokenizer
from lr_sglang.config import Deployment
from lr_sglang.errors import RuntimeRefused
from lr_sglang.runtimes import Fleet, ProgressEvent, launch
from lr_sglang.runtimes.fleet import Progress
from lr_sglang.transport import HttpTransport

DEFAULT_CONTEXT = 32768


@contextmanager
def deployed(
    deployment: Deployment, logs: Path, progress: Progress | None = None, timeout: float = 600.0
) -> Iterator[dict[str, RuntimeBackend]]:
    """Brings a deployment up, gives its backends by role, and takes everything down again.

    Raises:
        LookaheadError: as ``runtimes.launch``.
    """
    with launch(deployment, logs, progress, timeout) as fleet:
        roles = connect(fleet)
        try:
            yield roles
        finally:
            for backend in roles.values():
                backend.shutdown()


def connect(fleet: Fleet) -> dict[str, RuntimeBackend]:
    """A backend for every role; each knows the others, so that a program can move a branch between them."""
    roles: dict[str, RuntimeBackend] = {}
    for role, url in fleet.urls.items():
        runtime = fleet.deployment.runtime(role)
        assert runtime is not None
        transport = HttpTransport(url, role, fleet.keys.get(role, ""))
        info = _server_info(transport)
        roles[role] = RuntimeBackend(
            role,
            transport,
            load_tokenizer(fleet.tokenizers[role]),
            context=_context(info, runtime.context_length),
            timeout=runtime.timeout,
            seeded=_seeded(info),
            slots=_slots(info),
            holds=_held(info),
            token_layer=str(info.get("speculative_algorithm") or "") if info else None,
        )
        roles[role].simulated = bool(info.get("simulated"))
    for backend in roles.values():
        backend.roles = roles
    return roles


def _server_info(transport: HttpTransport) -> Mapping[str, Any]:
    try:
        return transport.get("/server_info", timeout=30.0)
    except RuntimeRefused:
        return {}  # a router has no such route


def _context(info: Mapping[str, Any], configured: int | None) -> int:
    """Prompt and answer together: the model's context, or what the runtime's memory holds if that is less."""
    known = [n for n in (configured, info.get("context_length"), _held(info)) if isinstance(n, int)]
    longest = info.get("max_req_input_len")
    if isinstance(longest, int):
        known.append(longest)
    return min(known, default=DEFAULT_CONTEXT)


def _held(info: Mapping[str, Any]) -> int | None:
    """Tokens that the runtime's KV memory holds."""
    held = info.get("max_total_num_tokens") or _state(info).get("max_total_num_tokens")
    return held if isinstance(held, int) else None


def _slots(info: Mapping[str, Any]) -> int | None:
    """Requests that the runtime runs at a time, as it has settled on itself; those of all its replicas."""
    each = _state(info).get("effective_max_running_requests_per_dp")
    return each * max(1, int(info.get("dp_size") or 1)) if isinstance(each, int) else None


def _state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    states = info.get("internal_states") or [{}]
    return states[0] if isinstance(states[0], Mapping) else {}


def _seeded(info: Mapping[str, Any]) -> bool:
    """Seeds count on a CPU by our own sampler, elsewhere only with deterministic inference and no token layer."""
    if info.get("device") == "cpu":
        return True
    return bool(info.get("enable_deterministic_inference")) and not info.get("speculative_algorithm")


__all__ = ["ProgressEvent", "connect", "deployed"]
