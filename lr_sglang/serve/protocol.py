"""What clients send: OpenAI's requests with SGLang's additions, and the ``lookahead`` extension.

Unknown fields are ignored, as other servers do. Requests with a field that lookahead reasoning
cannot follow (``target_only``) are answered by the target alone, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    model_validator,
)

from lr_sglang.algorithm.answer_request import Constraints
from lr_sglang.modes import MODES
from lr_sglang.serve.errors import Refusal, checked

MAX_PARTS = 4096  # messages of a conversation, and parts of one of them
MAX_STOPS = 32  # strings of one request, as SGLang's
INT64 = 2**63
# Arguments of templates, which know one or the other.
THINKING_ARGUMENTS = ("thinking", "enable_thinking")
Tokens = Annotated[int, Field(ge=1, le=2**31)]  # JSON has integers of any length
Text = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=500)]
Concerns = Callable[[Any], bool]


def _unless(*neutral: Any) -> Concerns:
    """Whether a value changes the answer: it is neither null nor the default."""
    return lambda value: value is not None and value not in neutral


_SET, _TOOL_CHOICE = _unless(0, "", [], {}), _unless("none", "auto")


class TargetOnly(NamedTuple):
    """A field that lookahead reasoning cannot follow.

    Attributes:
        concerns: whether a value (of any type) changes the answer.
        reason: why it cannot be followed.
    """

    concerns: Concerns
    reason: str


def _fields(names: str, reason: str, concerns: Concerns = _SET) -> dict[str, TargetOnly]:
    return dict.fromkeys(names.split(), TargetOnly(concerns, reason))


GRAMMAR = "a grammar begins with the answer, and no request for one step can begin inside of it"
HISTORY = (
    "the target's server counts the tokens of one request, and a step has a request of its own"
)
PENALTIES = ("presence_penalty", "repetition_penalty")  # followed where our plugin counts tokens
COMPUTED = "the target computes it for each token that it writes, and drafted steps are not its own"
SERVERS_OWN = "the target's server does it, and the draft's cannot do the same"
# Reasons of fields that are followed up to a bound.
WHY_BEYOND = {
    "model": "an adapter of the target's has no draft",
    "n": "that is more answers at a time",
}
TOOLS = "calls of tools have the target's own grammar and parser"


def _beyond_text(messages: Any) -> bool:
    """Whether a conversation has parts other than texts, or tools of its own."""
    given = messages if isinstance(messages, list) else []
    turns = [turn for turn in given if isinstance(turn, dict)]
    contents = [turn["content"] for turn in turns if isinstance(turn.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    kinds = [kind for part in parts if isinstance(kind := part.get("type", "text"), str)]
    return any(turn.get("tools") for turn in turns) or any(kind != "text" for kind in kinds)


def _several_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int | float)


def _is_form(form: Any) -> bool:
    return form is not None and (form.get("type") if isinstance(form, dict) else form) != "text"


def _replaces_template(arguments: Any) -> bool:
    return isinstance(arguments, dict) and not {"chat_template", "tools"}.isdisjoint(arguments)


class Lenient(BaseModel):
    """Unknown keys are ignored. Values are converted as SGLang converts them: 50.0 and "50" are the
    integer 50.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class StreamOptions(Lenient):
    """OpenAI's fields, and one of SGLang's."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class LookaheadRequest(BaseModel):
    """How this one request is to be answered, within what the operator allows."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    mode: str | None = Field(
        default=None,
        max_length=64,
        description="How to answer, such as lookahead or autoregressive.",
    )
    depth: int | None = Field(
        default=None, ge=1, description="Steps to look ahead, of those that /v1/models allows."
    )
    width: int | None = Field(
        default=None, ge=1, description="Drafted alternatives per step, as /v1/models allows."
    )
    verifier: str | None = Field(
        default=None, max_length=256, description="Who compares the versions of a step."
    )
    schedule: Literal["async", "sync"] | None = None
    trace: bool = Field(default=False, description="Send what happens while the answer is made.")


Effort = (
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
    | Annotated[float, Field(ge=0, le=0.99)]
)


class ReasoningWish(Lenient):
    """Whether and how much to think, in OpenAI's form and in SGLang's."""

    effort: Effort | None = None
    reasoning_effort: Effort | None = None
    enabled: bool | None = None
    enable: bool | None = None


class TextPart(Lenient):
    """A content part; only texts are supported."""

    type: Literal["text"]
    text: str


StopStrings = Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)]
Parts = Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
PromptIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], float]


class RequestFields(Lenient):
    """The fields that both kinds of request share.

    Attributes:
        target_only: by field, whether a value (of any type) can be followed by the target only.
        prompt_field: the field of the prompt, and a stand-in for a prompt that only the target can
            follow.
    """

    target_only: ClassVar[dict[str, TargetOnly]] = {
        **_fields("response_format", GRAMMAR, _is_form),
        **_fields("regex ebnf", GRAMMAR),
        **_fields("presence_penalty", HISTORY),
        **_fields("repetition_penalty", HISTORY, _unless(1)),
        **_fields("stop_regex", "it may match across the border of two steps"),
        **_fields("lora_path", WHY_BEYOND["model"]),
        **_fields(
            "extra_key cache_salt custom_params custom_logit_processor watermark", SERVERS_OWN
        ),
        **_fields("images_config mm_processor_kwargs", SERVERS_OWN),
        **_fields("return_hidden_states return_routed_experts return_token_ids", COMPUTED),
        **_fields("return_cached_tokens_details return_spec_tokens_details", COMPUTED),
    }
    prompt_field: ClassVar[tuple[str, Any]]

    model: str | None = Field(default=None, max_length=512)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31, description="-1 or 0: off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    max_tokens: Tokens | None = None
    stop: (
        Annotated[
            StopStrings,
            BeforeValidator(lambda one: [one] if isinstance(one, str) else one, Stop | StopStrings),
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    lookahead: LookaheadRequest | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: Bias | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    response_format: dict[str, Any] | None = None

    @classmethod
    def read(
        cls, body: Mapping[str, Any], refuse: bool, follows: Collection[str] = ()
    ) -> tuple[Self, tuple[str, ...]]:
        """Checks a request.

        Args:
            refuse: whether fields that need the target are refused.
            follows: those fields of ``target_only`` that lookahead reasoning can follow with this
                target's server.

        Returns:
            The request, and its fields that need the target; the stand-in replaces a prompt that
            does.

        Raises:
            Refusal: a field is wrong, or needs the target.
        """
        name, stand_in = cls.prompt_field
        why = tuple(
            one
            for one, only in cls.target_only.items()
            if one in body and one not in follows and only.concerns(body[one])
        )
        request = checked(cls, {**body, name: stand_in} if name in why and not refuse else body)
        if refuse and why:
            raise request.cannot(why[0])
        return request, why

    def cannot(self, name: str) -> Refusal:
        """The error for a field that lookahead reasoning cannot follow."""
        reason = self.target_only[name].reason if name in self.target_only else WHY_BEYOND[name]
        message = f"{name}: lookahead reasoning cannot follow it: {reason}"
        return Refusal(400, message, param=name)

    @property
    def wish(self) -> LookaheadRequest:
        """How it is to be answered."""
        return self.lookahead or LookaheadRequest()

    @property
    def names_lookahead(self) -> bool:
        """Whether it asks for a mode that looks ahead, by name."""
        mode = MODES.get(self.wish.mode or "")
        return mode is not None and mode.ahead

    @property
    def answers(self) -> int:
        """The number of answers."""
        return self.n or 1

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the answer may have."""
        return self.max_tokens

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the model's template."""
        return {}

    @property
    def thinks_not(self) -> bool:
        """Whether its template is told that the model does not think."""
        return any(self.arguments.get(name) is False for name in THINKING_ARGUMENTS)

    @property
    def constraints(self) -> Constraints:
        """On the tokens of the answer; raises ``Refusal`` if they cannot be kept."""
        least = self.min_tokens or 0
        most = self.most_tokens
        if most is not None and least > most:
            raise Refusal(400, f"min_tokens: must be at most {most}", param="min_tokens")
        return Constraints(
            min_tokens=least,
            ignore_eos=bool(self.ignore_eos),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=self.logit_bias or {},
        )


class CalledFunction(Lenient):
    """A function that the assistant called; templates take its arguments as an object."""

    name: str | None = None
    arguments: dict[str, Any] | Json[dict[str, Any]] | None = None


class ToolCall(Lenient):
    """A call of a tool in an earlier turn."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


MessageRole = Literal[
    "system", "developer", "user", "assistant", "tool", "function", "latest_reminder", "root"
]


class ChatMessage(Lenient):
    """One turn, with the fields that SGLang gives to a template."""

    role: Annotated[MessageRole, BeforeValidator(lambda role: str(role).lower(), str)]
    content: str | Parts | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    prefix: bool | None = None

    @model_validator(mode="after")
    def _user_says_something(self) -> Self:
        if self.role == "user" and self.content is None:
            raise ValueError("a user's turn has a content")
        return self

    @property
    def text(self) -> str:
        """The content, with parts joined as SGLang joins them."""
        content = self.content or ""
        return content if isinstance(content, str) else " ".join(part.text for part in content)

    def plain(self) -> dict[str, Any]:
        """The turn as a template takes it: without what is null, but for the content."""
        given = self.model_dump(exclude_none=True, exclude={"tool_calls"})
        if self.role == "user":  # SGLang knows no other field of it
            given = {"role": "user"}
        if self.role == "assistant" and self.tool_calls is not None:
            given["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        content = "" if self.content is None else self.content
        parts = content if isinstance(content, str) else [part.model_dump() for part in content]
        return {**given, "content": parts}


ChatMessages = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)
]


class ChatRequest(RequestFields):
    """POST /v1/chat/completions."""

    target_only = {
        **_fields("messages", "only texts are drafted", _beyond_text),
        **RequestFields.target_only,
        **_fields("tools functions", TOOLS),
        **_fields("tool_choice function_call", TOOLS, _TOOL_CHOICE),
        **_fields("modalities", "only texts are drafted", _unless(["text"])),
        **_fields("audio max_dynamic_patch min_dynamic_patch", "only texts are drafted"),
        **_fields("use_audio_in_video video_config", "only texts are drafted"),
        **_fields(
            "chat_template_kwargs",
            "a template of the request's own is the target's to allow",
            _replaces_template,
        ),
        **_fields("thinking task", "SGLang reads it for some models only"),
        **_fields("input_ids", "token ids replace the conversation for one vocabulary only"),
        **_fields("logprobs top_logprobs return_prompt_token_ids return_meta_info", COMPUTED),
        **_fields("return_input_ids_in_sglext return_sampling_mask", COMPUTED),
        **_fields("return_output_ids_in_sglext sampling_logprobs_mode", COMPUTED),
        **_fields("return_flat_raw_output_top_logprobs", COMPUTED),
    }
    prompt_field = ("messages", [{"role": "user", "content": "?"}])

    messages: Annotated[
        ChatMessages, BeforeValidator(lambda value: value, list[ChatMessage | dict[str, Any]])
    ]
    max_completion_tokens: Tokens | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningWish | None = None

    @property
    def said(self) -> list[dict[str, Any]]:
        """The conversation, in the form in which SGLang gives it to a template."""
        turns = [message.plain() for message in self.messages]
        if turns[-1]["role"] == "assistant":
            turns.pop()
            # SGLang takes an answer that is not to be continued for the user's words
            if not self.continue_final_message:
                turns.append({"role": "user", "content": self.messages[-1].text})
        return turns

    @property
    def prefix(self) -> str:
        """The beginning of the answer; empty if there is none."""
        last = self.messages[-1]
        return last.text if last.role == "assistant" and self.continue_final_message else ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the model's template: the request's own, and those that SGLang derives from the effort
        of reasoning.
        """
        wish = self.reasoning or ReasoningWish()
        efforts = (wish.effort, wish.reasoning_effort, self.reasoning_effort)
        effort = next((one for one in efforts if one is not None), None)
        derived: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort is not None or wish.enabled or wish.enable:
            derived |= dict.fromkeys(THINKING_ARGUMENTS, effort != "none")
        return derived | (self.chat_template_kwargs or {})

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(RequestFields):
    """POST /v1/completions: a raw prompt, a text or token ids."""

    target_only = {
        **_fields("prompt", "several prompts at a time are the target's", _several_prompts),
        **RequestFields.target_only,
        **_fields("best_of", COMPUTED, _unless(1)),
        **_fields("logprobs", COMPUTED, _unless()),
        **_fields("echo", "the prompt is not part of the answer"),
        **_fields("suffix", "text in the middle has a template of the target's own"),
        **_fields("json_schema", GRAMMAR),
    }
    prompt_field = ("prompt", "?")
    prefix: ClassVar[str] = ""

    prompt: Text | PromptIds | Annotated[list[Text | PromptIds], Field(min_length=1, max_length=1)]
    max_tokens: Tokens | None = 16  # OpenAI's default, and SGLang's

    @property
    def said(self) -> str | tuple[int, ...]:
        """The prompt as text or as token ids of the target's."""
        match self.prompt:
            case str() as text:
                return text
            case [str() as text]:
                return text
            case [list() as ids] | ids:
                return tuple(ids)


@dataclass(frozen=True)
class TargetRoute:
    """A route of the target that requests are passed on to.

    All are under /v1/, and read or generate. Weights, caches, sessions, profiles and aborts are
    elsewhere, and cannot be reached.

    Attributes:
        reads: the model of requests that lookahead reasoning can answer; all replies of such a
            route get the ``lookahead`` object. None where the target answers all.
        limits: fields for the tokens that an answer may have, the preferred one first.
        unlimited: whether an answer has no limit unless its request sets one.
        batch: the field that may be a list of inputs.
    """

    path: str
    reads: type[ChatRequest] | type[CompletionRequest] | None = None
    limits: tuple[str, ...] = ()
    unlimited: bool = False
    batch: str = ""


CHAT = TargetRoute(
    "/v1/chat/completions",
    ChatRequest,
    limits=("max_completion_tokens", "max_tokens"),
    unlimited=True,
)
COMPLETIONS = TargetRoute(
    "/v1/completions",
    CompletionRequest,
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
