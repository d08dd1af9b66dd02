"""Runtimes that answer from a script: deterministic, slow, failing or late, with no server and no
model.

They stand behind the real backend, interpreter and programs; only the HTTP and the model are
replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from lr_sglang.engine.request import Request
from lr_sglang.engine.tokenizer import Message
from lr_sglang.errors import LookaheadError, RuntimeRefused
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.step import DELIMITER
from lr_sglang.steps.token_text import TokenText

LIKELY = -0.1  # the log-probability of what a scripted model would write itself
END = 3  # the end-of-sequence id; every other id is a character's code


class CharTokenizer:
    """One token per character; ``chat`` marks roles with control characters that no text encodes
    to.
    """

    vocabulary = "characters"
    ends = frozenset({END})
    template = ""

    def encode(self, text: str, answer: bool = False) -> tuple[int, ...]:
        return tuple(ord(c) for c in text if ord(c) > END)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > END)

    def spell(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def special(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(one for one in ids if one <= END)

    def chat(self, messages: Sequence[Message], answer: bool) -> TokenText:
        ids: list[int] = []
        for message in messages:
            ids += [1, *self.encode(message["content"]), 2]
        return TokenText.of(self.decode(ids), (*ids, 1) if answer else tuple(ids), self.vocabulary)


def _each(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


Writer = Callable[[str, dict[str, Any]], str]


class ScriptedTransport:
    """Answers /generate with ``write(text of the prompt after the last role mark, sampling)``;
    chr(END) ends it.

    Args:
        seconds: how long a request takes, by its prompt text.
        fail: the error to raise, by its prompt text, or None.
    """

    def __init__(
        self,
        write: Writer,
        seconds: Callable[[str], float] = lambda text: 0.0,
        fail: Callable[[str], LookaheadError | None] = lambda text: None,
    ) -> None:
        self.write, self.seconds, self.fail = write, seconds, fail
        self.fail_to_weigh: Callable[[], LookaheadError | None] = lambda: None
        self.length_first, self.passes = (
            True,
            1,
        )  # SGLang 0.5.16's order; tokens that a pass of the target gives
        self.token_layer = ""  # a name: it says that a forward pass gave two tokens
        self.most = 0  # generations at once that nobody had cancelled
        self.running: set[Request] = set()
        self.writing: set[Request] = set()  # those that are not only weighed
        self.requests: list[dict[str, Any]] = []
        self.aborted = 0
        self._stopped: dict[Request, asyncio.Event] = {}

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        try:
            return await self._generate(payload, request, request.sending(self._abort))
        finally:
            request.end()

    async def _generate(
        self, payload: dict[str, Any], request: Request, rid: str
    ) -> dict[str, Any]:
        text = "".join(chr(i) if i > END else "\x01" for i in payload["input_ids"]).rsplit(
            "\x01", 1
        )[-1]
        self.requests.append({**payload, "rid": rid, "text": text})
        weighed = payload.get("return_logprob") and payload["logprob_start_len"] >= 0
        error = self.fail_to_weigh() if weighed else self.fail(text)
        self.running.add(request)
        if not weighed:
            self.writing.add(request)
        self.most = max(self.most, sum(not c.cancelled for c in self.writing))
        stopped = self._stopped[request] = asyncio.Event()
        try:
            async with asyncio.timeout(self.seconds(text)):
                await stopped.wait()
            aborted = True
        except TimeoutError:
            aborted = request.cancelled
        finally:
            self.running.discard(request)
            self.writing.discard(request)
            del self._stopped[request]
        if error is not None:
            raise error
        sampling = payload["sampling_params"]
        reply = self._reply(payload, self.write(text, sampling), sampling, aborted)
        if weighed:
            reply["meta_info"]["input_token_logprobs"] = self._weigh(payload)
        return reply

    def _weigh(self, payload: dict[str, Any]) -> list[tuple[float | None, int, None]]:
        """As SGLang does: none for the first. What this model would write itself is likely,
        anything else is not.
        """
        ids, start = payload["input_ids"], payload["logprob_start_len"]
        turn = max(i for i, one in enumerate(ids) if one < END) + 1
        asked = ids[start + 1 :]
        written = self.write("".join(map(chr, ids[turn : start + 1])), payload["sampling_params"])
        likely = [i < len(written) and one == ord(written[i]) for i, one in enumerate(asked)]
        return [(None, ids[start], None)] + [(LIKELY if yes else -9.0, 0, None) for yes in likely]

    def _reply(
        self, payload: dict[str, Any], text: str, sampling: dict[str, Any], aborted: bool
    ) -> dict[str, Any]:
        most, stop = sampling["max_new_tokens"], sampling.get("stop")
        found = [(text.find(one) + len(one), one) for one in _each(stop) if one in text]
        if not sampling.get("ignore_eos"):
            also = [chr(one) for one in sampling.get("stop_token_ids") or ()]
            found += [(text.index(one) + 1, one) for one in (chr(END), *also) if one in text]
        end, what = min(found, default=(most + 1, ""))
        after = (
            -(-end // self.passes) * self.passes
        )  # where the pass of the token layer ends that wrote the end
        if (after >= most) if self.length_first else (end > most):
            text, finish = (
                text[:end].ljust(after if found else 0, "x")[:most],
                {"type": "length", "length": most},
            )
        else:
            text, finish = (
                text[:end],
                {"type": "stop", "matched": what if what in _each(stop) else ord(what)},
            )
        if aborted:
            finish = {"type": "abort", "message": "aborted"}
        meta = {
            "finish_reason": finish,
            "prompt_tokens": len(payload["input_ids"]),
            "cached_tokens": 0,
        }
        meta["completion_tokens"] = len(text)
        if payload.get("return_logprob"):  # the same text, the same confidence
            rng = random.Random(text)
            meta["output_token_logprobs"] = [[-rng.random(), ord(c), None] for c in text]
        if self.token_layer and len(text) > 1:
            passes = len(text) // 2
            counts = (passes, 8 * passes, passes)
            meta |= dict(
                zip(
                    ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts"),
                    counts,
                    strict=True,
                )
            )
        shown = text[:-1] if isinstance(finish.get("matched"), int) else text.replace(chr(END), "")
        if isinstance(trimmed := finish.get("matched"), str) and not sampling.get("no_stop_trim"):
            shown = shown.removesuffix(trimmed)  # as SGLang does; the ids keep it
        return {"text": shown, "output_ids": [ord(c) for c in text], "meta_info": meta}

    def _abort(self, request: Request) -> None:
        self.aborted += 1
        self._stopped[request].set()

    async def get(self, path: str, timeout: float = 0.0) -> dict[str, Any]:
        return {"model_path": "scripted"}

    async def post(self, path: str, body: dict[str, Any], timeout: float = 0.0) -> dict[str, Any]:
        raise RuntimeRefused(f"{path}: 404", role="target")

    async def close(self) -> None:
        pass


def deployment(**transports: ScriptedTransport) -> RuntimeBackend:
    """Backends over scripted runtimes, by role; returns the target's."""
    roles = {
        role: RuntimeBackend(role, t, CharTokenizer(), seeded=True, token_layer=t.token_layer)
        for role, t in transports.items()
    }
    for backend in roles.values():
        backend.roles = roles
    return roles["target"]


def reasoner(seed: int, alpha: float = 1.0, whole: str = "") -> Writer:
    """A model whose next step depends on what stands before it; drafts with ``alpha`` < 1 often say
    something else.

    ``whole`` is an answer (with its END) to go on with as long as the prompt is a prefix of it.
    """

    def write(text: str, sampling: dict[str, Any]) -> str:
        rng = random.Random(repr((seed, text)))
        if rng.random() > alpha:
            rng = random.Random(repr((seed, alpha, text)))
            return rng.choice(("other", "o", "", "\n")) + rng.choice(
                (DELIMITER, DELIMITER, "\n\n\n", chr(END))
            )
        return whole[len(text) :] if whole.startswith(text) and text != whole else "lost" + chr(END)

    return write


def chapters(steps: Sequence[str]) -> Writer:
    """A model that goes on with a fixed answer wherever the prompt is a prefix of it, and else ends
    at once.
    """
    whole = DELIMITER.join(steps) + chr(END)

    def write(text: str, sampling: dict[str, Any]) -> str:
        return whole[len(text) :] if whole.startswith(text) else "lost" + chr(END)

    return write
