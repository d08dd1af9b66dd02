"""Scripted runtimes (``lr_sglang.testing``) that are also slow, failing or late, or unlike SGLang;
and verifiers over them.

A writer is a function of the text in the prompt's open turn, and chr(END) ends what it writes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from lr_sglang import testing
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits
from lr_sglang.engine.server_facts import FedLayer, ServerFacts
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.branch import Request
from lr_sglang.steps.step import DELIMITER, Verdict
from lr_sglang.steps.trace import Trace
from lr_sglang.testing import END as END
from lr_sglang.testing import LIKELY as LIKELY
from lr_sglang.verifiers import Setup, make_verifier
from lr_sglang.verifiers.cascade import Cascade
from lr_sglang.verifiers.embedding import Embedding
from lr_sglang.verifiers.verifier_registry import CascadeStage
from tests.prefixes import PrefixCache
from tests.simulated.clock import run_virtually


class CharTokenizer(testing.CharTokenizer):
    """One token per character, without exception."""

    words: ClassVar[dict[str, str]] = {}


Writer = Callable[[str, dict[str, Any]], str]


class ScriptedTransport(testing.ScriptedTransport):
    """Answers /generate with ``write(text of the open turn, sampling)``; chr(END) ends it.

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
        super().__init__("")
        self.write, self.seconds, self.fail = write, seconds, fail
        self.fail_to_weigh: Callable[[], LookaheadError | None] = lambda: None
        self.length_first = True  # SGLang 0.5.16's order
        self.passes = 1  # tokens that a pass of the target gives
        self.token_layer = ""  # a name: it says that a forward pass gave two tokens
        self.fed: FedLayer | None = None  # what its server says of it
        self.most = 0  # generations at once that nobody had cancelled
        self.running: set[Request] = set()
        self.writing: set[Request] = set()  # those that are not only weighed
        self.aborted = 0
        self.cache = PrefixCache()

    def _takes(self, prompt: testing.Prompt) -> float:
        return self.seconds(prompt.answer)

    def _write(self, prompt: testing.Prompt, sampling: dict[str, Any]) -> str:
        return self.write(prompt.answer, sampling)

    async def _wait(self, request: Request, prompt: testing.Prompt, weighed: bool) -> bool:
        error = self.fail_to_weigh() if weighed else self.fail(prompt.answer)
        self.running.add(request)
        if not weighed:
            self.writing.add(request)
        self.most = max(self.most, sum(not c.cancelled for c in self.writing))
        try:
            aborted = await super()._wait(request, prompt, weighed)
        finally:
            self.running.discard(request)
            self.writing.discard(request)
        if error is not None:
            raise error
        return aborted

    def _cut(self, text: str, end: int, most: int) -> tuple[str, bool]:
        after = -(-end // self.passes) * self.passes  # where the pass ends that wrote the end
        if (after >= most) if self.length_first else (end > most):
            return text[:end].ljust(after if end <= most else 0, "x")[:most], True
        return text[:end], False

    def _reply(
        self, payload: dict[str, Any], text: str, sampling: dict[str, Any], aborted: bool
    ) -> dict[str, Any]:
        reply = super()._reply(payload, text, sampling, aborted)
        ids = payload["input_ids"]
        reply["meta_info"]["cached_tokens"] = min(self.cache.longest(ids), len(ids) - 1)
        self.cache.add((*ids, *reply["output_ids"]))
        written = len(reply["output_ids"])
        if self.token_layer and written > 1:
            passes = written // 2
            reply["meta_info"] |= {
                "spec_verify_ct": passes,
                "spec_num_proposed_drafts": 8 * passes,
                "spec_num_correct_drafts": passes,
                "spec_correct_drafts_histogram": [0, passes],
            }
        return reply

    def _abort(self, request: Request) -> None:
        self.aborted += 1
        super()._abort(request)


def deployment(**transports: ScriptedTransport) -> RuntimeBackend:
    """Backends over scripted runtimes, by role; returns the target's."""
    roles = {}
    for role, transport in transports.items():
        facts = ServerFacts(seeded=True, token_layer=transport.token_layer, fed=transport.fed)
        roles[role] = backend = RuntimeBackend(role, transport, CharTokenizer(), facts)
        backend.roles, backend.readable = roles, False
    return roles["target"]


def set_facts(*backends: RuntimeBackend, **facts: Any) -> None:
    """Makes the servers of these runtimes others."""
    for backend in backends:
        backend.facts = replace(backend.facts, **facts)
        backend.slots.size = backend.facts.room


def reasoner(seed: int, alpha: float = 1.0, whole: str = "") -> Writer:
    """A model whose next step depends on what stands before it; drafts with ``alpha`` < 1 often say
    something else.

    ``whole`` is an answer (with its END) to go on with as long as the prompt is a prefix of it.
    """

    plain = goes_on(whole)

    def write(text: str, sampling: dict[str, Any]) -> str:
        rng = random.Random(repr((seed, text)))
        if rng.random() > alpha:
            rng = random.Random(repr((seed, alpha, text)))
            return rng.choice(("other", "o", "", "\n")) + rng.choice(
                (DELIMITER, DELIMITER, "\n\n\n", chr(END))
            )
        return plain(text, sampling)

    return write


def goes_on(whole: str) -> Writer:
    """A model that goes on with an answer wherever the prompt is a prefix of it, and else, and
    after it, is lost.
    """
    return lambda text, sampling: (
        whole[len(text) :] if whole.startswith(text) and text != whole else "lost" + chr(END)
    )


def chapters(steps: Sequence[str]) -> Writer:
    """A model that goes on with a fixed answer wherever the prompt is a prefix of it, and else ends
    at once.
    """
    return goes_on(DELIMITER.join(steps) + chr(END))


CONVERSATION = [{"role": "user", "content": "How?"}]


def answered(
    backend: RuntimeBackend,
    request: AnswerRequest,
    program: Any = lookahead,
    messages: Any = CONVERSATION,
    virtually: bool = False,
) -> Trace:
    """The record of an answer, whose text is at the end of the program's."""
    if virtually:
        state = run_virtually(run_program(program, messages, request, backend=backend))
    else:
        state = program.run(messages, request, backend=backend)
    assert state.text().endswith(request.trace.text)
    return request.trace


E = chr(END)


def fixed(answer: str, **kwargs) -> ScriptedTransport:
    """A model that knows one answer, and goes on with it at the length of what is there."""
    return ScriptedTransport(lambda text, sampling: answer[len(text) :] or E, **kwargs)


def slow(seconds):
    return lambda text: seconds


class Whole(CharTokenizer):
    """The judge of these tests writes a label of one character: decode gives it its meaning."""

    LABELS = {ord("A"): "aligned", ord("U"): "unaligned"}  # noqa: RUF012

    def decode(self, ids):
        return self.LABELS.get(ids[0], "") if tuple(ids) in {(65,), (85,)} else super().decode(ids)


class ShiftedTokenizer(CharTokenizer):
    """Another vocabulary: the same characters under other ids, two blank lines as one token."""

    vocabulary = "shifted"
    BLANK = 5

    def encode(self, text, answer=False):
        parts = text.split("\n\n")
        ids = [self._letters(parts[0])]
        ids += [(self.BLANK, *self._letters(part)) for part in parts[1:]]
        return tuple(i for part in ids for i in part)

    def _letters(self, text):
        return tuple(ord(c) + 1000 for c in text if ord(c) > END)

    def decode(self, ids):
        return "".join("\n\n" if i == self.BLANK else chr(i - 1000) for i in ids if i > END)


class ShiftedTransport(ScriptedTransport):
    """A scripted runtime that reads and writes the ids of ShiftedTokenizer."""

    async def generate(self, payload, request, timeout):
        tokenizer = ShiftedTokenizer()
        plain = [
            i
            for one in payload["input_ids"]
            for i in ([one] if one <= END else map(ord, tokenizer.decode([one])))
        ]
        reply = await super().generate(payload | {"input_ids": plain}, request, timeout)
        ids = reply["output_ids"]
        ended = ids[-1:] == [END]
        written = "".join(map(chr, ids[:-1] if ended else ids))
        reply["output_ids"] = [*tokenizer.encode(written), *([END] if ended else [])]
        return reply


def other_vocabulary(target, draft, look, verifier, tokenizer=ShiftedTokenizer, **limits):
    """The record of an answer whose draft has another vocabulary."""
    backend = deployment(target=target, draft=draft)
    backend.roles["draft"].tokenizer = tokenizer()
    return answered(backend, AnswerRequest(look, limits=Limits(**limits), verifier=verifier))


def made(name: str, roles):
    """``sure`` is a cascade with thresholds: its first stage decides the clear cases."""
    if name == "embedding":
        return Embedding(Lengths(), 0.9)
    if name == "sure":
        setup = Setup(roles, "paper")
        return Cascade(
            [(make_verifier("score:5", setup), CascadeStage("score", 3, 7))],
            make_verifier("judge", setup),
        )
    return make_verifier(name, Setup(roles, "paper"))


class Lengths:
    """An encoder: texts of about the same length are alike. Some batches fail."""

    def encode(self, sentences):
        if any(text.startswith("o") for text in sentences):
            raise ValueError("no vector for that")
        return [(1.0, len(text)) for text in sentences]


VERIFIERS = (
    *("exact", "random:0.5", "judge", "embedding", "score:5", "likelihood:min:-1"),
    *("cascade:score,likelihood,judge", "cascade:likelihood:min:-1,exact", "sure"),
)


class Agreeing:
    """A verifier that agrees by a rule on the texts of both versions, and as it is with all it is
    asked.
    """

    name = "agreeing"

    def __init__(self, rule=lambda target, draft: True):
        self.rule, self.asked = rule, []

    def verify(self, inquiry):
        self.asked.append(inquiry.pair)
        return Verdict(self.rule(inquiry.pair.target.text, inquiry.pair.draft.text), self.name)


# As a judge may accept them: not by tokens, so the answer need not be the target's own draw.
Same = partial(Agreeing, lambda target, draft: target == draft)
