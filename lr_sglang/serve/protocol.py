"""What clients send: OpenAI's requests with SGLang's additions, and the ``lookahead`` extension.

What is not known is ignored, as other servers do. A field that would change the answer, and that lookahead reasoning
has no way to follow, is marked ``TargetOnly``: for its sake the target answers alone, or the request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

INT64 = 2**63
LONGEST_STOP = 500
TARGET_ONLY = "target_only"  # the kind of error
MOST = 4096  # messages of a conversation, and parts of one of them

Text = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
# No model's context is longer, and JSON has integers of any length.
Tokens = Annotated[int, Field(ge=1, le=2**31)]


@dataclass(frozen=True)
class TargetOnly:
    """Marks a field that only the target can follow.

    Args:
        concerns: whether a value does; not so is one that changes nothing. It may be of a wrong type.
    """

    concerns: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def check(value: Any) -> Any:
            if self.concerns(value):
                raise PydanticCustomError(TARGET_ONLY, "not supported by this endpoint")
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


def _unless(*neutral: Any, key: str = "") -> TargetOnly:
    """Every value but these (of ``key`` in it) and null concerns the target."""

    def concerns(value: Any) -> bool:
        if value is None:
            return False
        return (value.get(key) if key and isinstance(value, dict) else value) not in neutral

    return TargetOnly(concerns)


def target_only(model: type[BaseModel], body: Mapping[str, Any], errors: Sequence[Any]) -> tuple[str, ...]:
    """The fields of a request for whose sake the target answers alone; none if something else is wrong with it.

    Args:
        errors: pydantic's of the body. What the target takes of a prompt is wrong here in many ways.
    """
    marks = ((name, mark) for name, field in model.model_fields.items() for mark in field.metadata)
    why = [name for name, mark in marks if isinstance(mark, TargetOnly) and name in body and mark.concerns(body[name])]
    prompt = {(name,) for name in why if name in ("messages", "prompt")}
    return tuple(why) if all(one["type"] == TARGET_ONLY or one["loc"][1:2] in prompt for one in errors) else ()


UNSUPPORTED, TOOL_CHOICE, ON = _unless(0, "", [], {}), _unless("none", "auto"), _unless(True)


def _beyond_text(messages: Any) -> bool:
    """Whether a conversation has calls of tools, parts that are no text, or an answer that is to be continued."""
    if not isinstance(messages, list) or not messages:
        return False
    turns = [turn for turn in messages if isinstance(turn, dict)]
    if isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
        return True
    parts = (part for turn in turns if isinstance(turn.get("content"), list) for part in turn["content"])
    return any(turn.get("role") in ("tool", "function") or turn.get("tool_calls") for turn in turns) or any(
        isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] != "text" for part in parts
    )


def _counts_on(options: Any, key: str = "continuous_usage_stats") -> bool:
    """Whether every chunk of a stream is to have the usage."""
    return (options.get(key) if isinstance(options, dict) else getattr(options, key, None)) is True


def _several_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and (len(prompt) > 1 or (len(prompt) == 1 and not isinstance(prompt[0], str)))


class Lenient(BaseModel):
    """Unknown keys are ignored; a value of a wrong type is not made to fit."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Lenient):
    """OpenAI's, with one of SGLang's."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class LookaheadRequest(BaseModel):
    """How this one request is to be answered, within what the operator allows."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_short(cls, given: Any) -> Any:
        """pydantic tells of every key that it does not know, which takes seconds where there are 100,000 of them."""
        if isinstance(given, dict) and len(given) > 64:
            raise ValueError("has too many keys")
        return given

    mode: str | None = Field(
        default=None, max_length=64, description="How to answer, such as lookahead or autoregressive."
    )
    depth: int | None = Field(default=None, ge=1, description="Steps to look ahead, of those that /v1/models allows.")
    width: int | None = Field(
        default=None, ge=1, description="Drafted alternatives per step, of those that /v1/models allows."
    )
    verifier: str | None = Field(default=None, max_length=256, description="Who compares the versions of a step.")
    schedule: Literal["async", "sync"] | None = None
    trace: bool = Field(default=False, description="Send what happens while the answer is made.")


class Asking(Lenient):
    """What both kinds of request have in common."""

    model: str = Field(max_length=512)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31, description="-1 or 0: off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    max_tokens: Tokens | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4, fail_fast=True)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, TargetOnly(_counts_on)] = None
    lookahead: LookaheadRequest | None = None

    presence_penalty: Annotated[float | None, UNSUPPORTED] = None
    frequency_penalty: Annotated[float | None, UNSUPPORTED] = None
    logit_bias: Annotated[dict[str, Any] | None, UNSUPPORTED] = None
    response_format: Annotated[dict[str, Any] | None, _unless("text", key="type")] = None
    # SGLang's own from here on
    repetition_penalty: Annotated[Any, _unless(1)] = None
    min_tokens: Annotated[Any, UNSUPPORTED] = None
    regex: Annotated[Any, UNSUPPORTED] = None
    ebnf: Annotated[Any, UNSUPPORTED] = None
    stop_token_ids: Annotated[Any, UNSUPPORTED] = None
    stop_regex: Annotated[Any, UNSUPPORTED] = None
    no_stop_trim: Annotated[Any, UNSUPPORTED] = None
    ignore_eos: Annotated[Any, UNSUPPORTED] = None
    skip_special_tokens: Annotated[Any, ON] = None
    lora_path: Annotated[Any, UNSUPPORTED] = None
    extra_key: Annotated[Any, UNSUPPORTED] = None  # keeps its prefixes in the cache apart, as the next
    cache_salt: Annotated[Any, UNSUPPORTED] = None
    custom_params: Annotated[Any, UNSUPPORTED] = None
    watermark: Annotated[Any, UNSUPPORTED] = None
    images_config: Annotated[Any, UNSUPPORTED] = None
    mm_processor_kwargs: Annotated[Any, UNSUPPORTED] = None
    return_hidden_states: Annotated[Any, UNSUPPORTED] = None
    return_routed_experts: Annotated[Any, UNSUPPORTED] = None
    return_cached_tokens_details: Annotated[Any, UNSUPPORTED] = None
    return_spec_tokens_details: Annotated[Any, UNSUPPORTED] = None
    return_token_ids: Annotated[Any, UNSUPPORTED] = None

    @property
    def most_tokens(self) -> int | None:
        """Of the answer."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class TextPart(Lenient):
    """The one kind of content part that there is."""

    type: Literal["text"]
    text: str


class Message(Lenient):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=MOST, fail_fast=True)]

    def plain(self) -> dict[str, str]:
        """As the programs take it; a developer is a system to every template that we know."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Asking):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST, fail_fast=True), TargetOnly(_beyond_text)]
    max_completion_tokens: Tokens | None = None
    tools: Annotated[list[Any] | None, UNSUPPORTED] = None
    functions: Annotated[list[Any] | None, UNSUPPORTED] = None
    tool_choice: Annotated[Any, TOOL_CHOICE] = None
    function_call: Annotated[Any, TOOL_CHOICE] = None
    logprobs: Annotated[bool | None, UNSUPPORTED] = None
    top_logprobs: Annotated[int | None, UNSUPPORTED] = None
    modalities: Annotated[Annotated[list[str], Field(fail_fast=True)] | None, _unless(["text"])] = None
    audio: Annotated[Any, UNSUPPORTED] = None
    # SGLang's own from here on
    chat_template_kwargs: Annotated[Any, UNSUPPORTED] = None
    reasoning_effort: Annotated[Any, UNSUPPORTED] = None
    thinking: Annotated[Any, UNSUPPORTED] = None
    task: Annotated[Any, UNSUPPORTED] = None
    separate_reasoning: Annotated[Any, ON] = None
    stream_reasoning: Annotated[Any, ON] = None
    continue_final_message: bool | None = None
    input_ids: Annotated[Any, UNSUPPORTED] = None
    max_dynamic_patch: Annotated[Any, UNSUPPORTED] = None
    min_dynamic_patch: Annotated[Any, UNSUPPORTED] = None
    use_audio_in_video: Annotated[Any, UNSUPPORTED] = None
    video_config: Annotated[Any, UNSUPPORTED] = None
    return_prompt_token_ids: Annotated[Any, UNSUPPORTED] = None
    return_meta_info: Annotated[Any, UNSUPPORTED] = None
    return_input_ids_in_sglext: Annotated[Any, UNSUPPORTED] = None
    return_output_ids_in_sglext: Annotated[Any, UNSUPPORTED] = None
    return_sampling_mask: Annotated[Any, UNSUPPORTED] = None
    sampling_logprobs_mode: Annotated[Any, UNSUPPORTED] = None
    return_flat_raw_output_top_logprobs: Annotated[Any, UNSUPPORTED] = None

    _prefix: str = PrivateAttr("")

    @model_validator(mode="wrap")
    @classmethod
    def _continues(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """The last message is taken as the beginning of the answer where the client says so, as SGLang does."""
        said: Any = (
            data.get("messages") if isinstance(data, dict) and data.get("continue_final_message") is True else None
        )
        last = said[-1] if isinstance(said, list) and said else None
        if not (isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str)):
            return handler(data)
        made = handler({**data, "messages": said[:-1]})
        made._prefix = last["content"]
        return made

    @property
    def prefix(self) -> str:
        """What the assistant has said of its answer already."""
        return self._prefix

    @field_validator("messages")
    @classmethod
    def _ends_with_a_question(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role == "assistant":
            raise ValueError("the last message must not be the assistant's: answers cannot be continued")
        if not messages[-1].plain()["content"].strip():
            raise ValueError("the last message is empty: there is no question in it")
        return messages

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Asking):
    """POST /v1/completions: a raw prompt, in which nothing is a special token."""

    prompt: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, max_length=1, fail_fast=True)], TargetOnly(_several_prompts)
    ]
    max_tokens: Tokens | None = 16  # OpenAI's default, and SGLang's
    best_of: Annotated[int | None, _unless(1)] = None
    echo: Annotated[bool | None, UNSUPPORTED] = None
    suffix: Annotated[str | None, UNSUPPORTED] = None
    logprobs: Annotated[int | None, _unless()] = None
    json_schema: Annotated[Any, UNSUPPORTED] = None

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]
