"""Runtimes that answer from a script: deterministic, slow, failing or late, with no server and no model.

They stand behind the real backend, interpreter and programs; only the HTTP and the model are replaced.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lr_sglang.backend import RuntimeBackend
from lr_sglang.chat import Message
from lr_sglang.errors import LookaheadError
from lr_sglang.steps import DELIMITER
from lr_sglang.tokens import TokenText
from lr_sglang.transport import Call

END = 3  # the end-of-sequence id; every other id is a character's code


class CharTokenizer:
    """One token per character; ``chat`` marks roles with control characters that no text encodes to."""

    vocabulary = "characters"

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(c) for c in text if ord(c) > END)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > END)

    def chat(self, messages: Sequence[Message], answer: bool) -> TokenText:
        ids: list[int] = []
        for message in messages:
            ids += [1, *self.encode(message["content"]), 2]
        return TokenText.of(self.decode(ids), (*ids, 1) if answer else tuple(ids), self.vocabulary)


Writer = Callable[[str, dict[str, Any]], str]


class ScriptedTransport:
    """Answers /generate with ``write(text of the prompt after the last role mark, sampling)``; chr(END) ends it.

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
        self.token_layer = ""  # a name: it says that a forward pass gave two tokens
        self.most = 0  # generations at once that nobody had cancelled
        self.running: set[Call] = set()
        self.requests: list[dict[str, Any]] = []
        self.aborted = 0
        self._changed = threading.Condition()

    def generate(self, payload: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        rid = call.sending(self._abort)
        text = "".join(chr(i) if i > END else "\x01" for i in payload["input_ids"]).rsplit("\x01", 1)[-1]
        self.requests.append({**payload, "rid": rid, "text": text, "at": time.monotonic()})
        error = self.fail(text)
        with self._changed:
            self.running.add(call)
            self.most = max(self.most, sum(not c.cancelled for c in self.running))
            aborted = self._changed.wait_for(lambda: call.cancelled, self.seconds(text))
            self.running.discard(call)
        if error is not None:
            raise error
        sampling = payload["sampling_params"]
        return self._reply(payload, self.write(text, sampling), sampling, aborted)

    def _reply(self, payload: dict[str, Any], text: str, sampling: dict[str, Any], aborted: bool) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": "length", "length": sampling["max_new_tokens"]}
        text = text[: sampling["max_new_tokens"]]
        stop = sampling.get("stop")
        if stop and stop in text:
            text, finish = text[: text.index(stop) + len(stop)], {"type": "stop", "matched": stop}
        if chr(END) in text:
            text, finish = text[: text.index(chr(END)) + 1], {"type": "stop", "matched": END}
        if aborted:
            finish = {"type": "abort", "message": "aborted"}
        meta = {"finish_reason": finish, "prompt_tokens": len(payload["input_ids"]), "cached_tokens": 0}
        if self.token_layer and len(text) > 1:
            passes = len(text) // 2
            counts = (passes, 8 * passes, passes)
            meta |= dict(
                zip(("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts"), counts, strict=True)
            )
        return {"text": text.replace(chr(END), ""), "output_ids": [ord(c) for c in text], "meta_info": meta}

    def _abort(self, call: Call) -> None:
        self.aborted += 1
        with self._changed:
            self._changed.notify_all()

    def get(self, path: str) -> dict[str, Any]:
        return {"model_path": "scripted"}

    def close(self) -> None:
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
    """A model whose next step depends on what stands before it; drafts with ``alpha`` < 1 often say something else.

    ``whole`` is an answer (with its END) to go on with as long as the prompt is a prefix of it.
    """

    def write(text: str, sampling: dict[str, Any]) -> str:
        rng = random.Random(repr((seed, text)))
        if rng.random() > alpha:
            rng = random.Random(repr((seed, alpha, text)))
            return rng.choice(("other", "o", "", "\n")) + rng.choice((DELIMITER, DELIMITER, "\n\n\n", chr(END)))
        return whole[len(text) :] if whole.startswith(text) and text != whole else "lost" + chr(END)

    return write


def chapters(steps: Sequence[str]) -> Writer:
    """A model that goes on with a fixed answer wherever the prompt is a prefix of it, and else ends at once."""
    whole = DELIMITER.join(steps) + chr(END)

    def write(text: str, sampling: dict[str, Any]) -> str:
        return whole[len(text) :] if whole.startswith(text) else "lost" + chr(END)

    return write
