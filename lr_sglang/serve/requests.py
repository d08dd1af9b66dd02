"""A request as asked, within what the operator allows: ``ClientRequest`` is answered by lookahead
reasoning, with a ``RenderedPrompt``; ``PassedRequest`` by the target alone, on one of its own
routes.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from jinja2.exceptions import TemplateError
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from lr_sglang.algorithm.answer_request import Constraints
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.transport import Post
from lr_sglang.errors import ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES, Mode, check_verifier
from lr_sglang.serve.errors import Refusal, checked, refusal
from lr_sglang.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    Lenient,
    LookaheadRequest,
    TargetRoute,
    Tokens,
)
from lr_sglang.serve.settings import Service
from lr_sglang.steps.token_text import TokenText

MAX_ANSWERS = 128  # of one request, as OpenAI's
# Log-probabilities for each token, as OpenAI's. More than a vocabulary has end SGLang's scheduler.
MAX_LOGPROBS = 20
MAX_REASON = 500  # characters of an error that a template has raised
# Fields that control the server and not the answer; they are removed from a client's request.
STEERING = frozenset(
    (
        "rid",
        "request_id",
        "session_id",
        "session_params",
        "priority",
        "custom_labels",
        "lookahead",
        "data_parallel_rank",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    )
)


# Fields of requests that hold token ids, and those that may also hold texts.
ID_FIELDS = ("input_ids", "stop_token_ids")
ID_OR_TEXT_FIELDS = ("prompt", "input", "query", "items")
IDS = TypeAdapter(list[int])  # which converts as SGLang does


def check_ids(body: Mapping[str, Any], size: int) -> None:
    """Checks the token ids of a request to any route: one that is not in the vocabulary would end
    SGLang's scheduler, and with it the answers of all.

    Args:
        size: of the vocabulary.

    Raises:
        Refusal: there is such an id.
    """
    for name in (*ID_FIELDS, *ID_OR_TEXT_FIELDS):
        given = body.get(name)
        if not isinstance(given, list):
            continue
        lists = [one for one in given if isinstance(one, list)]
        others = [one for one in given if not isinstance(one, list)]
        # of texts, or of parts of a conversation; beside a number SGLang reads a text as one too
        is_text = name in ID_OR_TEXT_FIELDS and all(isinstance(one, str | dict) for one in others)
        for ids in lists if is_text else [*lists, others]:
            try:
                fits = all(0 <= number < size for number in IDS.validate_python(ids))
            except ValidationError:
                fits = False
            if not fits:
                why = f"{name}: token ids are integers from 0 to {size - 1}"
                raise Refusal(400, why, param=name)


@dataclass(frozen=True)
class TargetEnding:
    """The part of an answer after the thinking, which the target writes alone.

    Attributes:
        why: the fields that lookahead reasoning cannot follow.
        prompt: of the whole answer, as the target has rendered it.
        grammar: keywords of ``sgl.gen``.
        tools: those that may be called.
    """

    why: tuple[str, ...]
    prompt: TokenText
    grammar: Mapping[str, str]
    tools: Sequence[Any] = ()


@dataclass(frozen=True)
class ClientRequest:
    """A request as its client sent it, and the settings of its answers.

    Attributes:
        constraints: on the tokens of an answer.
        ending: what follows the thinking, where lookahead reasoning serves the thinking only.
    """

    request: ChatRequest | CompletionRequest
    mode: Mode
    lookahead: Lookahead
    sampling: Sampling
    limits: Limits
    constraints: Constraints
    ending: TargetEnding | None = None

    @property
    def chat(self) -> bool:
        """Whether it asks for a turn of a conversation."""
        return isinstance(self.request, ChatRequest)

    @property
    def mode_name(self) -> str:
        """The mode's name in logs and responses."""
        return self.mode.name

    @property
    def why(self) -> tuple[str, ...]:
        """The fields because of which the target writes a part of the answer alone."""
        return () if self.ending is None else self.ending.why

    def each(self) -> list[ClientRequest]:
        """One for every answer, each with a seed of its own."""
        first = self.sampling.seed
        # SGLang takes 64 bits
        seeds = ((first + n + 2**63) % 2**64 - 2**63 for n in range(self.request.answers))
        return [replace(self, sampling=self.sampling.replace(seed=seed)) for seed in seeds]


def settled(request: ChatRequest | CompletionRequest, service: Service) -> ClientRequest:
    """A request with its settings: what it asks for, over the operator's defaults.

    Raises:
        Refusal: it asks for another model, or for what the operator does not allow.
    """
    if service.adapter(request.model):  # which the target alone would answer
        named = {"asked": request.model, "known": service.model}
        raise refusal("model_not_found", param="model", **named)
    wish = request.wish
    if request.answers > service.concurrency:
        raise Refusal(400, f"n: at most {service.concurrency} answers at a time", param="n")
    if wish.trace and request.answers > 1:
        raise _not_allowed("trace", "only for one answer, not with n")
    mode = MODES[_allowed("mode", wish.mode, service.modes)]
    sampling = service.sampling.with_options(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=-1 if request.top_k == 0 else request.top_k,
        min_p=request.min_p,
        seed=secrets.randbits(31) if request.seed is None else request.seed,
    )
    for name, most in (("depth", service.deepest), ("width", service.widest)):
        if (getattr(wish, name) or 0) > most:
            raise _not_allowed(name, f"must be at most {most}")
    verifier = _allowed("verifier", wish.verifier, service.verifiers)
    if wish.verifier is not None:
        try:
            check_verifier([mode], verifier, "lookahead.verifier")
        except ConfigError as error:
            raise Refusal(400, error.message, param="lookahead.verifier") from error
    asked = {"depth": wish.depth, "width": wish.width, "schedule": wish.schedule}
    try:
        look = mode.lookahead(service.lookahead.with_options(**asked, verifier=verifier))
    except ConfigError as error:
        raise Refusal(400, error.message, param="lookahead") from error
    most_tokens = min(filter(None, (request.most_tokens, service.limits.max_tokens)), default=None)
    limits = service.limits.with_options(max_tokens=most_tokens)
    return ClientRequest(request, mode, look, sampling, limits, request.constraints)


def _allowed(name: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value is None:
        return allowed[0]
    if value not in allowed:
        said = f"{value[:64]!r} is not allowed here; allowed: {', '.join(allowed)}"
        raise _not_allowed(name, said)
    return value


def _not_allowed(name: str, why: str) -> Refusal:
    return Refusal(400, f"lookahead.{name}: {why}", param=f"lookahead.{name}")


LogProbabilities = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


def _not_background(value: bool) -> bool:
    if value:
        raise ValueError("an answer ends with its client")
    return value


class Common(Lenient):
    """The fields of a request to the target that the endpoint itself reads."""

    model: str | None = Field(default=None, max_length=512)
    stream: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    logprobs: LogProbabilities | bool | None = None
    top_logprobs: LogProbabilities | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    background: Annotated[bool, AfterValidator(_not_background)] | None = None
    lookahead: LookaheadRequest | None = None
    custom_logit_processor: None = Field(
        default=None, description="Code, which no client may send."
    )


@dataclass(frozen=True)
class PassedRequest:
    """A request for one of the target's routes.

    Attributes:
        request: the fields that the endpoint reads.
        body: as the target gets it, but for the model's name.
        why: the fields that lookahead reasoning cannot follow.
        batch: number of inputs; 0 if they are no list.
        adapter: a LoRA adapter of the target's, with a colon before it; empty for none.
    """

    route: TargetRoute
    request: Common
    body: Mapping[str, Any]
    why: tuple[str, ...]
    batch: int = 0
    adapter: str = ""

    mode_name: ClassVar[str] = "target"

    def post(self, model: str) -> Post:
        """The request to the target, whose name of the model is ``model``."""
        rid = uuid.uuid4().hex
        named = {"model": model + self.adapter} if "model" in self.body else {}
        own = {"rid": rid} if self.route.reads else {}
        return Post(self.route.path, {**self.body, **named, **own}, rid, self.batch)


def passed_request(
    route: TargetRoute, body: Mapping[str, Any], why: Iterable[str], service: Service
) -> PassedRequest:
    """A request for the target, within what the operator allows.

    Raises:
        Refusal: a field that the endpoint reads is wrong, another model is asked for, or too many
            answers.
    """
    common = checked(Common, body)
    adapter = service.adapter(common.model)
    inputs = body.get(route.batch)
    batch = 0
    if isinstance(inputs, list) and not all(isinstance(one, int | float) for one in inputs):
        batch = len(inputs)
    if (batch or 1) * max(common.n or 1, common.best_of or 1) > MAX_ANSWERS:
        param = route.batch or "n"
        raise Refusal(400, f"{param}: at most {MAX_ANSWERS} of one request", param=param)
    sent = {name: value for name, value in body.items() if name not in STEERING}
    if limit := service.limits.max_tokens:
        given = [name for name in route.limits if sent.get(name)]
        for name in given or route.limits[-1:] * route.unlimited:
            sent[name] = min(getattr(common, name) or limit, limit)
    return PassedRequest(route, common, sent, tuple(why), batch, adapter)


class RenderedPrompt:
    """The prompt of a request, as each runtime gets it: rendered with the runtime's own template
    and its own defaults, and with the request's arguments.

    Making a long one is slow, as it renders the prompt for the target.

    Attributes:
        said: a conversation, or a raw prompt: a text, or token ids of the target's.
        prefix: the beginning of the answer, which the client has written.
        thinks: whether the prompt ends inside of the thinking, or the target's own parser takes an
            answer for it that does not open it.
        decode: turns the answer's tokens into text.

    Raises:
        Refusal: the model's template has no place for such a conversation, or the operator's
            program cannot answer it.
    """

    def __init__(self, asked: ClientRequest, service: Service, target: RuntimeBackend) -> None:
        request = asked.request
        ending = asked.ending
        tokenizer = target.tokenizer
        said: Any = conversation(asked) if service.program else request.said
        self.said = said
        self._asked = asked
        self.prefix = request.prefix
        self._rendered: dict[Any, TokenText] = {}  # runtimes that are alike get the same
        try:
            text = self(target) if ending is None else ending.prompt
        except (TemplateError, StopIteration, ValueError, TypeError) as error:
            # StopIteration: a text with every private-use character in it leaves no mark to break
            # special tokens with
            why = f"The model's chat template refuses this conversation: {error}"[:MAX_REASON]
            raise Refusal(400, why, param=request.prompt_field[0]) from error
        opens = tokenizer.thinking.opens
        closes = tokenizer.thinking.closes
        head = text.removesuffix(request.prefix).rstrip()
        begun = opens * (asked.chat and head.endswith(opens)) + request.prefix
        self.thinks = begun.rfind(opens) > begun.rfind(closes)
        if asked.chat and opens not in begun and closes not in begun:
            off = request.thinks_not or head.endswith(closes)
            self.thinks = target.facts.forces_reasoning and not off
        # in some models special tokens mark calls of tools
        shown = request.skip_special_tokens is False or (ending and ending.tools)
        self.decode = tokenizer.spell if shown else tokenizer.decode

    def __call__(self, backend: RuntimeBackend) -> TokenText:
        """The prompt for a runtime; that of the target is rendered first."""
        tokenizer = backend.tokenizer
        defaults = backend.facts.template_defaults
        template = (tokenizer.template, repr(defaults)) if self._asked.chat else ()
        key = (tokenizer.vocabulary, template)
        if key not in self._rendered:
            self._rendered[key] = self._render(backend)
        return self._rendered[key]

    def _render(self, backend: RuntimeBackend) -> TokenText:
        request = self._asked.request
        said = self.said
        tokenizer = backend.tokenizer
        if isinstance(said, list):
            text = tokenizer.chat(
                said, True, {**backend.facts.template_defaults, **request.arguments}
            )
        elif isinstance(said, tuple) and not self._rendered:  # the target's
            text = TokenText.of(tokenizer.spell(said), said, tokenizer.vocabulary)
        else:
            words = said if isinstance(said, str) else str(next(iter(self._rendered.values())))
            text = TokenText.of(words, tokenizer.raw(words), tokenizer.vocabulary)
        begun = request.prefix
        return text + TokenText.of(begun, tokenizer.encode(begun, True), tokenizer.vocabulary)


def conversation(asked: ClientRequest) -> list[dict[str, Any]]:
    """The conversation of a request as the operator's program is told it: texts, and nothing of how
    to render them.

    Raises:
        Refusal: the request asks for more.
    """
    request = asked.request
    said = asked.request.said
    turns = said if isinstance(said, list) else []
    wrong = ["prompt"] * (not asked.chat) + ["continue_final_message"] * bool(request.prefix)
    wrong += ["chat_template_kwargs"] * bool(request.arguments) + asked.constraints.names()
    no_texts = [turn["role"] in ("tool", "function") or "tool_calls" in turn for turn in turns]
    wrong += ["messages"] * any(no_texts)
    if wrong:
        raise Refusal(400, f"{wrong[0]}: a program answers conversations of texts", param=wrong[0])
    return [
        {
            "role": "system" if turn["role"] == "developer" else turn["role"],
            "content": turn["content"]
            if isinstance(turn["content"], str)
            else " ".join(part["text"] for part in turn["content"]),
        }
        for turn in turns
    ]
