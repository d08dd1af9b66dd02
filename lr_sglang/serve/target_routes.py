"""The routes of the target that requests are passed on to: those under /v1/, which read or
generate. Weights, caches, sessions, profiles and aborts are elsewhere, and cannot be reached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lr_sglang.serve.protocol import ChatRequest, CompletionRequest


@dataclass(frozen=True)
class TargetRoute:
    """A route.

    Attributes:
        reads: the model of requests that lookahead reasoning can answer; all replies of such a
            route get the ``lookahead`` object. None where the target answers all.
        rid: the field for the request's id; empty if there is none.
        limits: fields for the tokens that an answer may have, the preferred one first.
        unlimited: whether an answer has no limit unless its request sets one.
        batch: the field that may be a list of inputs.
    """

    path: str
    reads: type[ChatRequest] | type[CompletionRequest] | None = None
    rid: str = ""
    limits: tuple[str, ...] = ()
    unlimited: bool = False
    batch: str = ""


_CHAT_LIMITS = ("max_completion_tokens", "max_tokens")
CHAT = TargetRoute(
    "/v1/chat/completions",
    ChatRequest,
    "rid",
    limits=_CHAT_LIMITS,
    unlimited=True,
)
COMPLETIONS = TargetRoute(
    "/v1/completions",
    CompletionRequest,
    "rid",
    limits=("max_tokens",),
    batch="prompt",
)
# The names of other routes under /v1/ that requests are passed on to. They have no part that names
# something of another client's, as in /v1/responses/ID/cancel.
OTHER = re.compile(r"/v1/[a-z_]+(/[a-z_]+)?")
_OTHER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def other_route(path: str) -> TargetRoute | None:
    """A route that the target always answers; None if requests are not passed on to it."""
    if not OTHER.fullmatch(path) or path.startswith(("/v1/models", "/v1/responses/")):
        return None
    return TargetRoute(path, limits=_OTHER_LIMITS, unlimited=path == "/v1/responses")
