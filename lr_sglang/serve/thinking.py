"""Requests with tools or a JSON schema to a target that thinks: only the thinking is written by
lookahead reasoning.

What follows ``</think>`` the target writes alone, with SGLang's own grammars and parsers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson
import sglang as sgl
from jinja2.exceptions import TemplateError

from lr_sglang.engine.tokenizer import Tokenizer, resolve
from lr_sglang.errors import BadReply, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import backend_of, on, sync
from lr_sglang.frontend.gen_options import UNLIMITED, lookahead
from lr_sglang.frontend.stream_text import THINK, Chunk
from lr_sglang.serve.errors import refusal_of
from lr_sglang.serve.replies import Item, Summary, ToolCalls
from lr_sglang.serve.request_options import Conclusion
from lr_sglang.serve.settings import Service
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.step import THINK_END
from lr_sglang.steps.token_text import TokenText

# The fields that concern what follows the thinking.
FIELDS = frozenset(("tools", "response_format", "regex"))
# Those that say how a prompt is rendered.
RENDERED = (
    *("messages", "tools", "tool_choice"),
    *("chat_template_kwargs", "reasoning_effort", "reasoning"),
)
ANY_OBJECT = {"type": "object"}


@sgl.function
async def think_then_conclude(
    s: ProgramState,
    prompt: TokenText,
    grammar: Mapping[str, str] = MappingProxyType({}),
    most: int | None = None,
) -> None:
    """Thinks with lookahead reasoning; the target alone writes the rest.

    Args:
        grammar: of the rest, as keywords of ``sgl.gen``.
        most: tokens of both.
    """
    known = backend_of(s, "target").tokenizer
    most = UNLIMITED if most is None else most
    thinking = max(1, most - len(known.encode(THINK_END, True)) - 1)
    s += prompt
    s += lookahead("answer", thinking, stop=THINK_END, show=True)
    await sync(s)
    if s.get_meta_info("answer")["finish_reason"].get("matched") != THINK_END:
        return  # the thinking did not end
    thought = TokenText.wrap(s["answer"]) + THINK_END
    s += THINK_END
    s = on(s, "target")
    s += sgl.gen("answer", max_tokens=max(1, most - len(resolve(thought, known))), **grammar)
    await sync(s)
    s["answer"] = thought + s["answer"]


class Thinking:
    """Decides which requests are answered by ``think_then_conclude``.

    Args:
        check: raises where the endpoint admits no request now.

    Attributes:
        possible: whether the target thinks, and there is a draft with the same vocabulary.
    """

    def __init__(
        self, roles: Mapping[str, RuntimeBackend], service: Service, check: Callable[[], None]
    ) -> None:
        self._roles, self._check = roles, check
        can = service.passes and service.reasoning != "off" and "draft" in roles
        same = can and roles["draft"].tokenizer.vocabulary == roles["target"].tokenizer.vocabulary
        self.possible = same and (service.reasoning == "on" or _thinks(roles["target"].tokenizer))

    async def conclusion(self, body: Mapping[str, Any], why: Sequence[str]) -> Conclusion | None:
        """What a request asks for after the thinking; None where only the target can follow it.

        Args:
            why: its fields that lookahead reasoning cannot follow.

        Raises:
            Refusal: no request is admitted now.
        """
        if not self.possible or not set(why) <= FIELDS or not _of_texts(body["messages"]):
            return None
        tools, grammar = body.get("tools") or [], _grammar(body)
        if grammar is None or (tools and (grammar or not self._finds_calls(body))):
            return None
        asked = {name: body[name] for name in RENDERED if name in body}
        self._check()  # before any request to the target
        try:
            found = await self._roles["target"].transport.post("/tokenize", asked)
            ids = tuple(int(one) for one in found["tokens"])
        except (LookaheadError, LookupError, TypeError, ValueError):
            return None  # the target gets the request alone, and reports what is wrong
        known = self._roles["target"].tokenizer
        prompt = TokenText.of(await asyncio.to_thread(known.spell, ids), ids, known.vocabulary)
        return Conclusion(
            tuple(why), prompt, grammar, tools if body.get("tool_choice") != "none" else ()
        )

    def _finds_calls(self, body: Mapping[str, Any]) -> bool:
        """Whether the target can parse calls out of free text; a strict tool needs the model's own
        grammar instead.
        """
        named = [tool.get("function") if isinstance(tool, dict) else None for tool in body["tools"]]
        free = all(isinstance(one, dict) and not one.get("strict") for one in named)
        return (
            bool(self._roles["target"].tool_call_parser)
            and free
            and body.get("parallel_tool_calls") is not False
        )

    async def calls_in(self, tools: Sequence[Any], text: str) -> tuple[str, list[dict[str, Any]]]:
        """A text without its calls of tools, and these in OpenAI's form; raises ``Refusal`` if the
        target fails.
        """
        asked = {
            "text": text,
            "tools": tools,
            "tool_call_parser": self._roles["target"].tool_call_parser,
        }
        try:
            found = await self._roles["target"].transport.post("/parse_function_call", asked)
            calls = [
                {"name": one["name"], "arguments": one["parameters"]} for one in found["calls"]
            ]
            rest = str(found["normal_text"])
        except LookaheadError as error:
            raise refusal_of(error) from error
        except (LookupError, TypeError) as error:
            raise refusal_of(
                BadReply("/parse_function_call: no calls in the reply", role="target")
            ) from error
        named = [
            {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": call}
            for call in calls
        ]
        return (rest, named) if named else (text, [])


async def with_calls(
    items: AsyncGenerator[Item, None],
    find: Callable[[str], Awaitable[tuple[str, list[dict[str, Any]]]]],
) -> AsyncGenerator[Item, None]:
    """The pieces of an answer, but the text after the thinking is held back to its end, where its
    calls are parsed.
    """
    held = ""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, list):
                held += "".join(piece.text for piece in item if piece.kind == "content")
                item = [piece for piece in item if piece.kind != "content"]
            elif isinstance(item, Summary):
                text, calls = await find(held) if held else ("", [])
                if text:
                    yield [Chunk("content", text)]
                if calls:
                    yield ToolCalls(calls)
                    item = replace(item, calls=True)
            if item != []:
                yield item


def _thinks(known: Tokenizer) -> bool:
    """Whether a model thinks, unless it is asked not to: its template opens the thinking, or names
    a marker for it.
    """
    try:
        begun = known.chat([{"role": "user", "content": "?"}], True).rstrip()
    except (TemplateError, ValueError, TypeError):  # the template refuses it
        return False
    return begun.endswith(THINK) or (THINK in known.template and not begun.endswith(THINK_END))


def _grammar(body: Mapping[str, Any]) -> dict[str, str] | None:
    """The answer's grammar as keywords of ``sgl.gen``, one at most; None if that has no keyword for
    it.
    """
    form, regex = body.get("response_format") or {}, body.get("regex")
    kind = form.get("type", "text") if isinstance(form, dict) else None
    found: dict[str, str] = {"regex": regex} if regex else {}
    if regex and not isinstance(regex, str):
        return None
    if kind == "text":
        return found
    brought = form.get("json_schema")
    schema = brought.get("schema") if kind == "json_schema" and isinstance(brought, dict) else None
    schema = ANY_OBJECT if kind == "json_object" else schema
    return (
        {"json_schema": orjson.dumps(schema).decode()}
        if isinstance(schema, dict) and not found
        else None
    )


def _of_texts(messages: list[Any]) -> bool:
    """Whether a conversation is one of texts and calls of tools that waits for an answer."""
    if not messages or not all(isinstance(one, dict) for one in messages):
        return False
    parts = [
        part for one in messages if isinstance(one.get("content"), list) for part in one["content"]
    ]
    texts = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return texts and messages[-1].get("role") != "assistant"
