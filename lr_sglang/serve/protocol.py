"""What clients send: OpenAI's requests with SGLang's additions, and the ``lookahead`` extension.

Unknown fields are ignored, as other servers do. Requests with a field that lookahead reasoning
cannot follow (``target_only``) are answered by the target alone, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from lr_sglang.serve.errors import Refusal, checked

MAX_PARTS = 4096  # messages of a conversation, and parts of one of them
INT64 = 2**63
Tokens = Annotated[int, Field(ge=1, le=2**31)]  # JSON has integers of any length
Text = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=500)]
Concerns = Callable[[Any], bool]


def _unless(*neutral: Any) -> Concerns:
    """Whether a value changes the answer: it is neither null nor the default."""
    return lambda value: value is not None and value not in neutral


_SET, _OTHER, _TOOL_CHOICE = _unless(0, "", [], {}), _unless(True), _unless("none", "auto")


def _fields(concerns: Concerns, names: str) -> dict[str, Concerns]:
    return dict.fromkeys(names.split(), concerns)


def _beyond_text(messages: Any) -> bool:
    """Whether a conversation has calls of tools, or parts other than texts."""
    if not isinstance(messages, list):
        return False
    turns = [turn for turn in messages if isinstance(turn, dict)]
    if any(turn.get("role") in ("tool", "function") or turn.get("tool_calls") for turn in turns):
        return True
    parts = [
        part for turn in turns if isinstance(turn.get("content"), list) for part in turn["content"]
    ]
    kinds = [part.get("type", "text") for part in parts if isinstance(part, dict)]
    return any(isinstance(kind, str) and kind != "text" for kind in kinds)


def _several_prompts(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and not (len(prompt) == 1 and isinstance(prompt[0], str))
    )


def _is_form(form: Any) -> bool:
    return form is not None and (form.get("type") if isinstance(form, dict) else form) != "text"


def _counts_always(options: Any) -> bool:
    return isinstance(options, dict) and options.get("continuous_usage_stats") is True


class Lenient(BaseModel):
    """Unknown keys are ignored; values are not converted."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Lenient):
    """OpenAI's fields, and one of SGLang's."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class LookaheadRequest(BaseModel):
    """How this one request is to be answered, within what the operator allows."""

    model_config = ConfigDict(strict=True, extra="forbid")

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

    @model_validator(mode="before")
    @classmethod
    def _is_short(cls, given: Any) -> Any:
        """Refuses too many keys: pydantic reports every unknown one, seconds for 100,000
        of them.
        """
        if isinstance(given, dict) and len(given) > 64:
            raise ValueError("it has too many keys")
        return given


def _listed(value: Any) -> Any:
    """A text as a list of one."""
    if not isinstance(value, str | list):
        raise ValueError("Input should be text or a list")
    return [value] if isinstance(value, str) else value


def _parts(value: Any) -> Any:
    """A text as a list of one part."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else _listed(value)


class TextPart(Lenient):
    """A content part; only texts are supported."""

    type: Literal["text"]
    text: str


Stops = Annotated[list[Stop], Field(max_length=4, fail_fast=True)]
Parts = Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
OnePrompt = Annotated[list[Text], Field(min_length=1, max_length=1, fail_fast=True)]


class Asking(Lenient):
    """The fields that both kinds of request share.

    Attributes:
        target_only: by field, whether a value (of any type) can be followed by the target only.
        prompt_field: the field of the prompt, and a stand-in for a prompt that only the target can
            follow.
    """

    target_only: ClassVar[dict[str, Concerns]] = {
        "stream_options": _counts_always,
        "response_format": _is_form,
        "repetition_penalty": _unless(1),
        "skip_special_tokens": _OTHER,
        **_fields(
            _SET,
            "presence_penalty frequency_penalty logit_bias min_tokens regex ebnf stop_token_ids",
        ),
        **_fields(
            _SET, "stop_regex no_stop_trim ignore_eos lora_path extra_key cache_salt custom_params"
        ),
        **_fields(
            _SET,
            "watermark images_config mm_processor_kwargs return_hidden_states "
            "return_routed_experts",
        ),
        **_fields(_SET, "return_cached_tokens_details return_spec_tokens_details return_token_ids"),
    }
    prompt_field: ClassVar[tuple[str, Any]]

    model: str = Field(max_length=512)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31, description="-1 or 0: off.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    max_tokens: Tokens | None = None
    stop: Annotated[Stops, BeforeValidator(_listed, Stop | Stops)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    lookahead: LookaheadRequest | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any], refuse: bool) -> tuple[Self, tuple[str, ...]]:
        """Checks a request.

        Args:
            refuse: whether fields that need the target are refused.

        Returns:
            The request, and its fields that need the target; the stand-in replaces a prompt that
            does.

        Raises:
            Refusal: a field is wrong, or needs the target.
        """
        name, stand_in = cls.prompt_field
        why = tuple(
            one for one, concerns in cls.target_only.items() if one in body and concerns(body[one])
        )
        request = checked(cls, {**body, name: stand_in} if name in why and not refuse else body)
        if refuse and why:
            raise Refusal(400, f"{why[0]}: not supported by this endpoint", param=why[0])
        return request, why or ((name,) if request.begun and not refuse else ())

    @property
    def begun(self) -> bool:
        """Whether it ends with a turn of the assistant that only the target can continue."""
        return False

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the answer may have."""
        return self.max_tokens


class Message(Lenient):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Parts, BeforeValidator(_parts, str | Parts)]

    def plain(self) -> dict[str, str]:
        """The turn as a program takes it; ``developer`` becomes ``system``, the role that templates
        know.
        """
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


Conversation = Annotated[list[Message], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]


class ChatRequest(Asking):
    """POST /v1/chat/completions."""

    target_only = {
        "messages": _beyond_text,
        **Asking.target_only,
        **_fields(_SET, "tools functions"),
        **_fields(_TOOL_CHOICE, "tool_choice function_call"),
        "modalities": _unless(["text"]),
        **_fields(_OTHER, "separate_reasoning stream_reasoning"),
        **_fields(
            _SET, "logprobs top_logprobs audio chat_template_kwargs reasoning_effort thinking"
        ),
        **_fields(
            _SET,
            "task input_ids max_dynamic_patch min_dynamic_patch use_audio_in_video video_config",
        ),
        **_fields(
            _SET,
            "return_prompt_token_ids return_meta_info return_input_ids_in_sglext "
            "return_sampling_mask",
        ),
        **_fields(
            _SET,
            "return_output_ids_in_sglext sampling_logprobs_mode "
            "return_flat_raw_output_top_logprobs",
        ),
    }
    prompt_field = ("messages", [{"role": "user", "content": "?"}])

    messages: Annotated[
        Conversation, BeforeValidator(lambda value: value, list[Message | dict[str, Any]])
    ]
    max_completion_tokens: Tokens | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: Annotated[list[str], Field(fail_fast=True)] | None = None

    @property
    def begun(self) -> bool:
        return self.messages[-1].role == "assistant" and not self.continue_final_message

    @property
    def asked(self) -> list[dict[str, str]]:
        """The conversation; raises ``Refusal`` if it has no question at the end."""
        turns = [message.plain() for message in self.messages]
        turns = turns[:-1] if self._continues else turns
        if not turns or turns[-1]["role"] == "assistant" or not turns[-1]["content"].strip():
            raise Refusal(400, "messages: the last one must be a question", param="messages")
        return turns

    @property
    def prefix(self) -> str:
        """The beginning of the answer; empty if there is none."""
        return self.messages[-1].plain()["content"] if self._continues else ""

    @property
    def _continues(self) -> bool:
        return bool(self.continue_final_message) and self.messages[-1].role == "assistant"

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Asking):
    """POST /v1/completions: a raw prompt, in which nothing is a special token."""

    target_only = {
        "prompt": _several_prompts,
        **Asking.target_only,
        "best_of": _unless(1),
        "logprobs": _unless(),
        **_fields(_SET, "echo suffix json_schema"),
    }
    prompt_field = ("prompt", "?")
    prefix: ClassVar[str] = ""

    prompt: Annotated[
        OnePrompt, BeforeValidator(_listed, Text | list[Any])
    ]  # the target takes more
    max_tokens: Tokens | None = 16  # OpenAI's default, and SGLang's
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None

    @property
    def asked(self) -> str:
        return self.prompt[0]
