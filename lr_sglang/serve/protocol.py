"""What clients send: OpenAI's requests, as far as they are answered, and the ``lookahead`` extension.

What is not known is ignored, as other servers do. What is known and would change the answer, but is not supported, is
refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

INT64 = 2**63
LONGEST_STOP = 500
MOST = 4096  # messages of a conversation, and parts of one of them

Text = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
# No model's context is longer, and JSON has integers of any length.
Tokens = Annotated[int, Field(ge=1, le=2**31)]


def _only(*neutral: Any, key: str = "") -> AfterValidator:
    """Refuses a field that is known but not supported, unless its value (of ``key`` in it) changes nothing."""

    def check(value: Any) -> Any:
        if (value.get(key) if key else value) not in neutral:
            raise ValueError("not supported by this endpoint")
        return value

    return AfterValidator(check)


UNSUPPORTED, TOOL_CHOICE = _only(None, 0, "", [], {}), _only(None, "none", "auto")


class Lenient(BaseModel):
    """Unknown keys are ignored; a value of a wrong type is not made to fit."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(Lenient):
    """OpenAI's."""

    include_usage: bool = False


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
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    lookahead: LookaheadRequest | None = None

    presence_penalty: Annotated[float | None, UNSUPPORTED] = None
    frequency_penalty: Annotated[float | None, UNSUPPORTED] = None
    logit_bias: Annotated[dict[str, Any] | None, UNSUPPORTED] = None

    @model_validator(mode="after")
    def _streams(self) -> Asking:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream: true")
        return self

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

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    tools: Annotated[list[Any] | None, UNSUPPORTED] = None
    functions: Annotated[list[Any] | None, UNSUPPORTED] = None
    tool_choice: Annotated[Any, TOOL_CHOICE] = None
    function_call: Annotated[Any, TOOL_CHOICE] = None
    response_format: Annotated[dict[str, Any], _only("text", key="type")] | None = None
    logprobs: Annotated[bool | None, UNSUPPORTED] = None
    top_logprobs: Annotated[int | None, UNSUPPORTED] = None
    modalities: Annotated[list[str], Field(fail_fast=True), _only(["text"])] | None = None
    audio: Annotated[Any, UNSUPPORTED] = None

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

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=1, fail_fast=True)]
    best_of: Annotated[int | None, _only(None, 1)] = None
    echo: Annotated[bool | None, UNSUPPORTED] = None
    suffix: Annotated[str | None, UNSUPPORTED] = None
    logprobs: Annotated[int | None, _only(None)] = None

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]
