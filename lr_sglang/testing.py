"""Runtimes that answer from a script, to test a program or a verifier without a model.

Only HTTP and model are replaced: backends, SGLang's interpreter and the programs are the real ones.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.tokenizer import NO_ARGUMENTS, Message
from lr_sglang.engine.transport import Head, Post
from lr_sglang.errors import RuntimeRefused
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.plugin_protocol import ROUTE, Delivery
from lr_sglang.steps.branch import Request
from lr_sglang.steps.step import DELIMITER, TAGS
from lr_sglang.steps.token_text import TokenText

__all__ = ["CharTokenizer", "Prompt", "ScriptedTransport", "runtimes"]

END = 3  # the end-of-sequence id
# around every turn
_OPEN = "\x01"
_CLOSE = "\x02"
# log-probabilities of what the script would write, and of the rest
LIKELY = -0.1
UNLIKELY = -9.0


@dataclass(frozen=True)
class Prompt:
    """A prompt that a script goes on from.

    Attributes:
        question: the closed turns before, with blank lines between them.
        answer: what stands in the open turn: the answer so far, or the opening of a judge's reply.
    """

    question: str
    answer: str


Script = str | Sequence[str] | Callable[[Prompt, dict[str, Any]], str]


def runtimes(
    target: Script,
    draft: Script | None = None,
    judge: Script | None = None,
    seconds: float = 0.02,
) -> dict[str, RuntimeBackend]:
    """Backends over scripted runtimes, for ``lr.deployment(runtimes(...))``.

    Each script is a whole answer, a list of its steps, or a function of the ``Prompt`` and SGLang's
    sampling parameters that returns the rest of the answer. A script that raises an
    ``lr.LookaheadError`` is a runtime that fails. After a step that is not in its answer, a script
    of steps goes on with the step that follows by number.

    Args:
        target: writes the answer.
        draft: writes the drafts; without it the target answers alone.
        judge: writes the judge's reply, such as ``aligned`` or ``unaligned``.
        seconds: how long a request to the target takes. Draft and judge reply at once: a draft
            that is later than the target is rejected.
    """
    scripts = {"target": target, "draft": draft, "judge": judge}
    facts = ServerFacts(seeded=True, token_layer="")
    roles = {
        role: RuntimeBackend(
            role,
            ScriptedTransport(script, seconds if role == "target" else 0.0),
            CharTokenizer(),
            facts,
        )
        for role, script in scripts.items()
        if script is not None
    }
    for backend in roles.values():
        backend.roles = roles
        backend.readable = False  # a script has no probabilities
    return roles


class CharTokenizer:
    """One token per character, whose id is its code; "ali" is one token, because the first token of
    a judge's label decides. Turns are marked by ids that no text encodes to.
    """

    vocabulary = "characters"
    size = sys.maxunicode + 1
    ends = frozenset({END})
    template = ""
    thinking = TAGS
    # Texts that are one token, each with the character whose code is its id.
    words: ClassVar[dict[str, str]] = {"ali": "\U0010fffd"}

    def encode(self, text: str, answer: bool = False) -> tuple[int, ...]:
        for word, mark in self.words.items():
            text = text.replace(word, mark)
        return tuple(ord(c) for c in text if ord(c) > END)

    def decode(self, ids: Sequence[int]) -> str:
        return self.spell([i for i in ids if i > END])

    def spell(self, ids: Sequence[int]) -> str:
        text = "".join(map(chr, ids))
        for word, mark in self.words.items():
            text = text.replace(mark, word)
        return text

    def special(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(one for one in ids if one <= END)

    def raw(self, text: str) -> tuple[int, ...]:
        return self.encode(text)

    def chat(
        self, messages: Sequence[Message], answer: bool, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> TokenText:
        ids: list[int] = []
        for message in messages:
            ids += [ord(_OPEN), *self.encode(message["content"]), ord(_CLOSE)]
        ids += [ord(_OPEN)] if answer else []
        return TokenText.of(self.decode(ids), tuple(ids), self.vocabulary)


_TOKENS = CharTokenizer()


class ScriptedTransport:
    """Answers /generate from a script, as SGLang would; aborts end it.

    Args:
        script: as for ``runtimes``.
        seconds: how long each request takes.

    Attributes:
        requests: the payloads that were sent, in order, each with its ``rid`` and with the ``text``
            of its open turn.
    """

    def __init__(self, script: Script, seconds: float = 0.0) -> None:
        self._script = script
        self._seconds = seconds
        self.requests: list[dict[str, Any]] = []
        self._stopped: dict[Request, asyncio.Event] = {}

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        try:
            rid = request.sending(self._abort)
            prompt = _read(payload["input_ids"])
            self.requests.append({**payload, "rid": rid, "text": prompt.answer})
            weighed = payload.get("return_logprob") and payload["logprob_start_len"] >= 0
            aborted = await self._wait(request, prompt, bool(weighed))
            sampling = payload["sampling_params"]
            reply = self._reply(payload, self._write(prompt, sampling), sampling, aborted)
            if weighed:
                reply["meta_info"]["input_token_logprobs"] = self._weigh(payload)
            if payload.get("stream") and request.on_tokens is not None:
                for length in range(1, len(reply["output_ids"])):
                    request.on_tokens(reply["output_ids"][:length])
                    await asyncio.sleep(0)
            return reply
        finally:
            request.end()

    async def get(self, path: str, timeout: float = 0.0) -> dict[str, Any]:
        return {"model_path": "scripted"}

    async def post(self, path: str, body: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        raise RuntimeRefused(f"{path}: 404", role="target")

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = 0.0
    ) -> Sequence[tuple[str, str]]:
        raise RuntimeRefused(f"{ROUTE}: 404", role="target")

    async def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        raise RuntimeRefused(f"{post.path}: 404", role="target")
        yield b""  # makes this a generator

    async def close(self) -> None:
        pass

    async def _wait(self, request: Request, prompt: Prompt, weighed: bool) -> bool:
        """Takes the request's time; whether it was aborted."""
        stopped = self._stopped[request] = asyncio.Event()
        try:
            async with asyncio.timeout(self._takes(prompt)):
                await stopped.wait()
            return True
        except TimeoutError:
            return request.cancelled
        finally:
            del self._stopped[request]

    def _takes(self, prompt: Prompt) -> float:
        return self._seconds

    def _write(self, prompt: Prompt, sampling: dict[str, Any]) -> str:
        """What the script goes on with up to its end, a character per token."""
        if callable(self._script):
            text = self._script(prompt, sampling)
        else:
            steps = [self._script] if isinstance(self._script, str) else self._script
            whole = DELIMITER.join(steps)
            begun = prompt.answer
            text = whole
            if not whole.startswith(begun):  # it goes on by the number of steps
                text = DELIMITER.join(whole.split(DELIMITER)[begun.count(DELIMITER) :])
                begun = begun.rpartition(DELIMITER)[2]
            text = text.removeprefix(begun)
        return "".join(map(chr, (*_TOKENS.encode(text), END)))

    def _weigh(self, payload: dict[str, Any]) -> list[tuple[float | None, int, None]]:
        """The log-probabilities of the prompt's tokens; as SGLang does, none for the first."""
        ids = payload["input_ids"]
        start = payload["logprob_start_len"]
        asked = ids[start + 1 :]
        written = self._write(_read(ids[: start + 1]), payload["sampling_params"])
        likely = [i < len(written) and one == ord(written[i]) for i, one in enumerate(asked)]
        rows = [(LIKELY if yes else UNLIKELY, 0, None) for yes in likely]
        return [(None, ids[start], None), *rows]

    def _cut(self, text: str, end: int, most: int) -> tuple[str, bool]:
        """The text up to its end or its token limit, and whether the limit ended it: SGLang looks
        at the length first.
        """
        return text[: min(end, most)], end >= most

    def _reply(
        self, payload: dict[str, Any], text: str, sampling: dict[str, Any], aborted: bool
    ) -> dict[str, Any]:
        most = sampling["max_new_tokens"]
        stop = sampling.get("stop")
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        found = [(text.find(one) + len(one), one) for one in stops if one in text]
        if not sampling.get("ignore_eos"):
            ends = [chr(one) for one in (END, *(sampling.get("stop_token_ids") or ()))]
            found += [(text.index(one) + 1, one) for one in ends if one in text]
        end, what = min(found, default=(most + 1, ""))
        text, too_long = self._cut(text, end, most)
        finish: dict[str, Any] = {"type": "stop", "matched": what if what in stops else END}
        if too_long:
            finish = {"type": "length", "length": most}
        elif what not in stops:
            finish["matched"] = ord(what)
        if aborted:
            finish = {"type": "abort", "message": "aborted"}
        matched = finish.get("matched")
        shown = text[:-1] if isinstance(matched, int) else text.replace(chr(END), "")
        if isinstance(matched, str) and not sampling.get("no_stop_trim"):
            shown = shown.removesuffix(matched)  # as SGLang does; the ids keep it
        meta: dict[str, Any] = {
            "finish_reason": finish,
            "prompt_tokens": len(payload["input_ids"]),
            "completion_tokens": len(text),
        }
        if payload.get("return_logprob"):  # the same text, the same confidence
            rng = random.Random(text)
            rows = [[-rng.random(), ord(c), None] for c in text]
            meta |= {"output_token_logprobs": rows, "output_top_logprobs": [[one] for one in rows]}
        ids = [ord(c) for c in text]
        return {
            "text": _TOKENS.spell([ord(c) for c in shown]),
            "output_ids": ids,
            "meta_info": meta,
        }

    def _abort(self, request: Request) -> None:
        if request in self._stopped:
            self._stopped[request].set()


def _read(ids: Sequence[int]) -> Prompt:
    text = "".join(_CLOSE if i == END else chr(i) for i in ids)
    closed, _, answer = text.rpartition(_OPEN)
    turns = [turn.rstrip(_CLOSE) for turn in closed.split(_OPEN) if turn]
    words = [_TOKENS.spell([ord(c) for c in part]) for part in (DELIMITER.join(turns), answer)]
    return Prompt(words[0], words[1].rpartition(_CLOSE)[2])
