"""The ``sgl.gen`` expressions of one answer: for a step, the rest of one, a read, several steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sglang as sgl

from lr_sglang.algorithm.answer_request import AnswerContext
from lr_sglang.algorithm.reader import Reader
from lr_sglang.config import Sampling
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.sglang_api.interpreter import SglGen
from lr_sglang.steps.step import DELIMITER, StepStop
from lr_sglang.steps.tree import Node

# Tokens of one streamed generation, whose events each have all tokens so far.
STREAMED = 2048


class StepGens:
    """Makes the ``sgl.gen`` expressions of one answer, with its program's defaults."""

    def __init__(self, context: AnswerContext, reader: Reader) -> None:
        self._request = context.request
        self._tree = context.tree
        self._context = context
        self._reader = reader
        self._steps: dict[tuple[int, bool], SglGen] = {}

    def step(self, node: Node, role: str) -> SglGen:
        """Generates the step after ``node``, or what is missing of it, up to its token limit; with
        log-probabilities for the gate.
        """
        tokens = self._room(node)
        gated = role == "draft" and self._request.lookahead.gate > 0
        made = self._steps.get((tokens, gated))
        if made is None:
            more: dict[str, Any] = {"return_logprob": True} if gated else {}
            made = self.gen(node, role, tokens, stop=StepStop(DELIMITER), **more)
            if not self._request.constraints.names():  # shared by all branches
                self._steps[tokens, gated] = made
        return made

    def guess(self, node: Node) -> SglGen:
        """By it the draft writes what may follow in the target's version after ``node``: as many
        tokens as are read at once.
        """
        version = node.version
        experience = self._request.experience
        portion = experience.reads.portion_size(experience.read_times())
        room = self._tree.room(node) - version.size if version.runs_on else self._room(node)
        ends = version.last_portion or not version.runs_on
        more: dict[str, Any] = {"stop": StepStop(DELIMITER)} if ends else {}
        tokens = max(1, min(portion, room))
        return self.gen(node, "draft", tokens, self._reader.draft_sampling(), **more)

    def read(self, path: Sequence[Node]) -> SglGen:
        """By it the target reads the drafted tokens after each prefix on a path, and writes one
        more.
        """
        drafted = sum(len(node.version.guess or ()) for node in path)
        return self.gen(path[-1], "target", 1, **self._reader.options(drafted))

    def several(
        self, node: Node, tokens: int, *, streamed: bool, stop: StepStop | None = None
    ) -> SglGen:
        """By it the target writes several steps after ``node`` and what is known of its version, or
        up to ``stop``; fewer tokens where they are streamed and each event has all tokens so far.
        """
        tokens = min(tokens, self._tree.room(node) - node.version.size)
        if streamed and not self._context.target.facts.increments:
            tokens = min(tokens, STREAMED)
        more: dict[str, Any] = {"stop": stop} if stop is not None else {}
        return self.gen(node, "target", tokens, **more)

    def gen(
        self,
        node: Node,
        role: str,
        tokens: int,
        sampling: Sampling | None = None,
        *,
        after: tuple[int, ...] = (),
        **more: Any,
    ) -> SglGen:
        """A ``sgl.gen`` of up to so many tokens after ``node`` and the tokens ``after`` it, drawn
        as the answer's request or ``sampling`` says, within its constraints; ``more`` are options
        of ``sgl.gen``.
        """
        beyond: dict[str, Any] = {}
        if self._request.constraints.names():
            options, beyond = self._constrained(node, role, tokens, after)
            more |= options
        drawn_as = (sampling or self._request.sampling).drawn()
        made = sgl.gen("step", max_tokens=tokens, **drawn_as, **more)
        executor = self._context.state.stream_executor
        made.sampling_params = executor.resolve(made.sampling_params)
        made.sampling_params.more = beyond
        return made

    def _room(self, node: Node) -> int:
        """Tokens that the step after ``node`` may still have."""
        most = min(self._request.lookahead.max_step_tokens, self._tree.room(node))
        return most - len(node.version.known)

    def _constrained(
        self, node: Node, role: str, tokens: int, after: tuple[int, ...]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options that keep the answer's constraints in a generation, of ``sgl.gen`` and
        beyond.
        """
        tokenizer = self._context.target.tokenizer
        ids = after
        at: Node | None = node
        while at is not None and at is not self._tree.root and at.step is not None:
            ids = resolve(at.step.tokens(), tokenizer) + ids
            at = at.parent
        return self._request.constraints.after(
            (*self._request.trace.ids, *ids),
            tokens,
            self._context.shares_vocabulary(role),
            self._context.roles[role].facts.counts_written,
        )
