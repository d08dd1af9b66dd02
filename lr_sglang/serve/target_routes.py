"""The routes of the target that requests may be passed on to. A route of SGLang's that is not here cannot be reached.

What is here reads or generates. Nothing that changes the server or concerns another client's requests may be: weights,
caches, sessions, profiles, aborts, stored responses and their cancelling, ``/server_info``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetRoute:
    """One of them.

    Attributes:
        rid: the field for the request's id; empty if there is none.
        prefix: of that id.
        limits: fields that say how many tokens an answer may have, the one that is preferred first.
        unlimited: whether an answer has no limit that a request does not set.
        batch: the field that may be a list of inputs.
        extended: whether a reply gets the ``lookahead`` object, and a request must name the model.
    """

    path: str
    about: str
    rid: str = ""
    prefix: str = ""
    limits: tuple[str, ...] = ()
    unlimited: bool = False
    batch: str = ""
    extended: bool = False


CHAT = TargetRoute(
    "/v1/chat/completions",
    "Answers a conversation.",
    "rid",
    limits=("max_completion_tokens", "max_tokens"),
    unlimited=True,
    extended=True,
)
COMPLETIONS = TargetRoute(
    "/v1/completions", "Goes on with a raw prompt.", "rid", limits=("max_tokens",), batch="prompt", extended=True
)
# By the target alone, whatever a request says.
OTHERS = (
    TargetRoute("/v1/responses", "OpenAI's responses.", "request_id", "resp_", ("max_output_tokens",), unlimited=True),
    TargetRoute("/v1/messages", "Anthropic's messages.", limits=("max_tokens",)),
    TargetRoute("/v1/messages/count_tokens", "Tokens of Anthropic's messages."),
    TargetRoute("/v1/embeddings", "Embeddings of texts.", "rid", batch="input"),
    TargetRoute("/v1/classify", "Classes of texts.", "rid", batch="input"),
    TargetRoute("/v1/score", "Probabilities of tokens after a text.", batch="items"),
    TargetRoute("/v1/rerank", "Documents in the order in which they answer a query.", batch="documents"),
    TargetRoute("/v1/tokenize", "Token ids of a text.", batch="prompt"),
    TargetRoute("/v1/detokenize", "The text of token ids.", batch="tokens"),
    TargetRoute("/tokenize", "Token ids of a text.", batch="prompt"),
    TargetRoute("/detokenize", "The text of token ids.", batch="tokens"),
)
PATHS = frozenset(route.path for route in (CHAT, COMPLETIONS, *OTHERS))
