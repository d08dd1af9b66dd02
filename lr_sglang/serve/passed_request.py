"""Requests that the target answers alone: what is sent to one of its routes, within what the
operator allows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lr_sglang.engine.transport import Post
from lr_sglang.serve.errors import Refusal, checked, refusal
from lr_sglang.serve.protocol import Lenient, LookaheadRequest, Tokens
from lr_sglang.serve.settings import Service
from lr_sglang.serve.target_routes import TargetRoute

MAX_ANSWERS = 128  # of one request, as OpenAI's
PROMPTS = (
    *("messages", "prompt", "input_ids", "tools"),
    *("input", "instructions", "system", "query", "items", "documents", "text", "tokens"),
)
# Fields that control the server and not the answer; they are removed from a client's request.
STEERING = frozenset(
    (
        *(
            "rid",
            "request_id",
            "session_id",
            "session_params",
            "priority",
            "custom_labels",
            "lookahead",
        ),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
    )
)


class Common(Lenient):
    """The fields of a request to the target that the endpoint itself reads."""

    model: str | None = Field(default=None, max_length=512)
    stream: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    background: Literal[False] | None = Field(
        default=None, description="An answer ends with its client."
    )
    lookahead: LookaheadRequest | None = None
    custom_logit_processor: None = Field(
        default=None, description="Code, which no client may send."
    )


@dataclass(frozen=True)
class PassedRequest:
    """A request for one of the target's routes.

    Attributes:
        body: as the target gets it, but for the model's name.
        why: the fields that lookahead reasoning cannot follow.
        batch: number of inputs; 0 if they are no list.
        adapter: a LoRA adapter of the target's, with a colon before it; empty for none.
    """

    route: TargetRoute
    body: Mapping[str, Any]
    why: tuple[str, ...]
    stream: bool
    batch: int = 0
    adapter: str = ""

    mode_name: ClassVar[str] = "target"

    @property
    def extension(self) -> dict[str, Any]:
        """The ``lookahead`` object of the response."""
        return {"mode": self.mode_name, "why": list(self.why)}

    def post(self, model: str) -> Post:
        """The request to the target, whose name of the model is ``model``."""
        rid = uuid.uuid4().hex
        named = {"model": model + self.adapter} if "model" in self.body else {}
        own = {self.route.rid: rid} if self.route.rid else {}
        return Post(self.route.path, {**self.body, **named, **own}, rid, self.batch)

    def texts(self) -> Iterator[str | int]:
        """All texts and token ids of the prompt."""
        yield from _texts([self.body.get(name) for name in PROMPTS])


def passed_request(
    route: TargetRoute, body: Mapping[str, Any], why: Iterable[str], service: Service
) -> PassedRequest:
    """A request for the target, within what the operator allows.

    Raises:
        Refusal: a field that the endpoint reads is wrong, another model is asked for, or too many
            answers.
    """
    common = checked(Common, body)
    model, colon, adapter = (common.model or "").partition(service.model)
    if common.model is not None and (model or not colon or adapter[:1] not in ("", ":")):
        raise refusal("model_not_found", param="model", asked=common.model, known=service.model)
    inputs = body.get(route.batch)
    batch = (
        len(inputs)
        if isinstance(inputs, list) and not all(isinstance(one, int) for one in inputs)
        else 0
    )
    if (batch or 1) * max(common.n or 1, common.best_of or 1) > MAX_ANSWERS:
        param = route.batch or "n"
        raise Refusal(400, f"{param}: at most {MAX_ANSWERS} of one request", param=param)
    sent = {name: value for name, value in body.items() if name not in STEERING}
    if limit := service.limits.max_tokens:
        given = [name for name in route.limits if sent.get(name)]
        for name in given or route.limits[-1:] * route.unlimited:
            sent[name] = min(sent.get(name) or limit, limit)
    return PassedRequest(route, sent, tuple(why), bool(common.stream), batch, adapter)


def _texts(value: Any) -> Iterator[str | int]:
    """All texts and token ids in a JSON value, without URLs of images and other media."""
    match value:
        case str():
            yield value
        case bool():
            return
        case int():
            yield value
        case list():
            for one in value:
                yield from _texts(one)
        case dict():
            for name, one in value.items():
                if not name.endswith("_url"):
                    yield from _texts(one)
