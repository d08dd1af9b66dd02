"""Requests with tools or a JSON schema to a target that thinks: only the thinking is written by
lookahead reasoning.

What follows the thinking the target writes alone, with SGLang's own grammars and parsers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson
import sglang as sgl

from lr_sglang.engine.tokenizer import resolve, thinks
from lr_sglang.errors import BadReply, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import backend_of, on, sync
from lr_sglang.frontend.gen_options import UNLIMITED, lookahead
from lr_sglang.serve.protocol import ChatRequest
from lr_sglang.serve.requests import TargetEnding
from lr_sglang.serve.settings import Service
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.steps.token_text import TokenText
from lr_sglang.user_programs.program import Program

# The fields that concern what follows the thinking.
FIELDS_AFTER_THINKING = frozenset(("tools", "response_format", "regex"))
# Those that say how a prompt is rendered.
RENDERED = (
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
)
ANY_OBJECT = {"type": "object"}
GRAMMARS = 256  # that are known to be good


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
    tokenizer = backend_of(s, "target").tokenizer
    end = tokenizer.thinking.closes
    most = UNLIMITED if most is None else most
    s += prompt
    s += lookahead("answer", most, stop=end, show=True)
    await sync(s)
    if s.get_meta_info("answer")["finish_reason"].get("matched") != end:
        return  # the thinking did not end
    thought = TokenText.wrap(s["answer"]) + end
    left = most - len(resolve(thought, tokenizer))
    if left < 1:
        s["answer"] = thought
        s.get_meta_info("answer")["finish_reason"] = {"type": "length"}
        return
    s += end
    s = on(s, "target")
    # not sgl.gen, which knows the regular expressions of Python only
    s += SglGen("answer", max_new_tokens=left, **grammar)
    await sync(s)
    s["answer"] = thought + s["answer"]


def thinking_program(ending: TargetEnding, most: int | None) -> Program:
    """``think_then_conclude`` for one request, whose answer has ``most`` tokens."""
    function = think_then_conclude.bind(grammar=ending.grammar, most=most)
    return Program("think_then_conclude", function, takes_request=False, continues=True)


class TargetEndings:
    """Decides which requests are answered by ``think_then_conclude``: of those the target alone can
    write what follows the thinking.

    Attributes:
        possible: whether the target thinks, one marker ends that whatever follows, and there is a
            draft with the same vocabulary.
    """

    def __init__(self, roles: Mapping[str, RuntimeBackend], service: Service) -> None:
        self._roles = roles
        self._compiled = set[Any]()
        can = service.passes and service.reasoning != "off" and "draft" in roles
        same = can and roles["draft"].tokenizer.vocabulary == roles["target"].tokenizer.vocabulary
        tokenizer = roles["target"].tokenizer
        self.possible = (
            same and tokenizer.thinking.always and (service.reasoning == "on" or thinks(tokenizer))
        )

    async def ending_of(
        self, request: ChatRequest, body: Mapping[str, Any], why: Sequence[str]
    ) -> TargetEnding | None:
        """What a request asks for after the thinking; None where only the target can follow it.

        Args:
            body: the request as its client sent it.
            why: its fields that lookahead reasoning cannot follow.

        Raises:
            LookaheadError: the target refuses the grammar.
        """
        if not set(why) <= FIELDS_AFTER_THINKING or request.thinks_not:
            return None
        # the rest is one generation of the target's, without constraints
        if request.constraints.names() or request.messages[-1].role == "assistant":
            return None
        tools = body.get("tools") or []
        grammar = _grammar(body)
        if grammar is None or (tools and (grammar or not self._finds_calls(body))):
            return None
        asked = {name: body[name] for name in RENDERED if name in body}
        try:
            found = await self._roles["target"].transport.post("/tokenize", asked)
            ids = tuple(int(one) for one in found["tokens"])
        except (LookaheadError, LookupError, TypeError, ValueError):
            return None  # the target gets the request alone, and reports what is wrong
        if grammar:
            await self._compile(grammar, ids)
        tokenizer = self._roles["target"].tokenizer
        prompt = TokenText.of(
            await asyncio.to_thread(tokenizer.spell, ids), ids, tokenizer.vocabulary
        )
        called = tools if body.get("tool_choice") != "none" else ()
        return TargetEnding(tuple(why), prompt, grammar, called)

    async def _compile(self, grammar: Mapping[str, str], ids: Sequence[int]) -> None:
        """Lets the target compile a grammar, which raises ``LookaheadError`` if it is none, before
        a whole thought is written in vain.
        """
        key = tuple(grammar.items())
        if key not in self._compiled:
            sampling = {"max_new_tokens": 1, **grammar}
            asked = {"input_ids": ids[-1:], "sampling_params": sampling}
            await self._roles["target"].transport.post("/generate", asked)
            self._compiled = {*list(self._compiled)[-GRAMMARS:], key}

    def _finds_calls(self, body: Mapping[str, Any]) -> bool:
        """Whether the target can parse calls out of free text; a strict tool needs the model's own
        grammar instead.
        """
        parser = self._roles["target"].facts.tool_call_parser
        if not parser or body.get("parallel_tool_calls") is False:
            return False
        named = [tool.get("function") if isinstance(tool, dict) else None for tool in body["tools"]]
        return all(isinstance(one, dict) and not one.get("strict") for one in named)

    async def calls_in(self, tools: Sequence[Any], text: str) -> tuple[str, list[dict[str, Any]]]:
        """A text without its calls of tools, and these in OpenAI's form; raises ``LookaheadError``
        if the target fails to find them.
        """
        target = self._roles["target"]
        asked = {"text": text, "tools": tools, "tool_call_parser": target.facts.tool_call_parser}
        try:
            found = await target.transport.post("/parse_function_call", asked)
            calls = [
                {
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "type": "function",
                    "function": {"name": one["name"], "arguments": one["parameters"]},
                }
                for one in found["calls"]
            ]
            return str(found["normal_text"]), calls  # without a call that was cut, as SGLang's
        except (LookupError, TypeError) as error:
            raise BadReply("/parse_function_call: no calls in the reply", role="target") from error


def _grammar(body: Mapping[str, Any]) -> dict[str, str] | None:
    """The answer's grammar as keywords of ``sgl.gen``, one at most; None if that has no keyword for
    it.
    """
    form = body.get("response_format") or {}
    regex = body.get("regex")
    match form:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} if not regex:
            return {"json_schema": orjson.dumps(schema).decode()}
        case {"type": "json_object"} if not regex:
            return {"json_schema": orjson.dumps(ANY_OBJECT).decode()}
        case dict() if form.get("type", "text") == "text" and isinstance(regex or "", str):
            return {"regex": regex} if regex else {}
        case _:
            return None
