"""The routes of the target that requests may be passed on to. No other route of SGLang's can be
reached.

These read or generate. Nothing that changes the server or concerns another client's requests may be
here: weights, caches, sessions, profiles, aborts, stored responses and their cancelling,
``/server_info``.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr_sglang.serve.protocol import ChatRequest, CompletionRequest


@dataclass(frozen=True)
class TargetRoute:
    """A route.

    Attributes:
        reads: the model of requests that lookahead reasoning can answer; all replies of such a
            route get the ``lookahead`` object. None where the target answers all.
        rid: the field for the request's id, which begins with ``prefix``; empty if there is none.
        limits: fields for the tokens that an answer may have, the preferred one first.
        unlimited: whether an answer has no limit unless its request sets one.
        batch: the field that may be a list of inputs.
    """

    path: str
    about: str
    reads: type[ChatRequest] | type[CompletionRequest] | None = None
    rid: str = ""
    prefix: str = ""
    limits: tuple[str, ...] = ()
    unlimited: bool = False
    batch: str = ""


_CHAT_LIMITS = ("max_completion_tokens", "max_tokens")
CHAT = TargetRoute(
    "/v1/chat/completions",
    "Answers a conversation.",
    ChatRequest,
    "rid",
    limits=_CHAT_LIMITS,
    unlimited=True,
)
COMPLETIONS = TargetRoute(
    "/v1/completions",
    "Continues a raw prompt.",
    CompletionRequest,
    "rid",
    limits=("max_tokens",),
    batch="prompt",
)
# Always answered by the target.
OTHERS = (
    TargetRoute(
        "/v1/responses",
        "OpenAI's responses.",
        None,
        "request_id",
        "resp_",
        ("max_output_tokens",),
        unlimited=True,
    ),
    TargetRoute("/v1/messages", "Anthropic's messages.", limits=("max_tokens",)),
    TargetRoute("/v1/messages/count_tokens", "Tokens of Anthropic's messages."),
    TargetRoute("/v1/embeddings", "Embeddings of texts.", rid="rid", batch="input"),
    TargetRoute("/v1/classify", "Classes of texts.", rid="rid", batch="input"),
    TargetRoute("/v1/score", "Probabilities of tokens after a text.", batch="items"),
    TargetRoute(
        "/v1/rerank", "Documents in the order in which they answer a query.", batch="documents"
    ),
    TargetRoute("/v1/tokenize", "Token ids of a text.", batch="prompt"),
    TargetRoute("/v1/detokenize", "The text of token ids.", batch="tokens"),
    TargetRoute("/tokenize", "Token ids of a text.", batch="prompt"),
    TargetRoute("/detokenize", "The text of token ids.", batch="tokens"),
)
PATHS = frozenset(route.path for route in (CHAT, COMPLETIONS, *OTHERS))
