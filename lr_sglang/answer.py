"""One answer in the making: starts branches for a program, hears of their ends, keeps steps, leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import sglang as sgl

from lr_sglang import policy
from lr_sglang.chat import resolve
from lr_sglang.dsl import Inquiry, backend_of, light
from lr_sglang.errors import Cancelled, ConfigError, LookaheadError, PromptTooLong, RuntimeRefused
from lr_sglang.flight import Arrival, Flight, Sent
from lr_sglang.hearing import Hearing
from lr_sglang.job import Job
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.spares import Spares
from lr_sglang.steps import Step, completed, split_ids
from lr_sglang.trace import StepRecord
from lr_sglang.tree import Branch, Node, Outcome, Pair, StepTree, Verdict
from lr_sglang.witness import Witness
from lr_sglang.writing import Writing

# A draft that failed is left alone for a while, then tried again: plain target decoding goes on meanwhile.
REST_SECONDS = 2.0
# Threads without work that an answer keeps at most.
MOST_SPARES = 9


class Answer:
    """The step tree of one answer, with branches on runtimes. A context manager: leaving it leaves nothing running.

    Args:
        s: a state whose open assistant turn is to be written.
        job: what is asked for.

    Raises:
        PromptTooLong: the prompt leaves no room for an answer.
    """

    def __init__(self, s: ProgramState, job: Job) -> None:
        self.s, self.job, self.trace = light(s), job, job.record
        self.ended = self._left = False
        look = job.lookahead
        self._spares = Spares(s, 1 + look.width if job.verifier else 0, min(look.depth + 3, MOST_SPARES))
        self._flight = Flight(self.trace, self._spares.back, self._prepare)
        self._resting: dict[str, float] = {}
        s.sync()
        target = backend_of(s, "target")
        prompt_tokens = len(target.prompt_ids(s.stream_executor))
        budget = job.limits.budget(prompt_tokens, target.context)
        if budget < 1:
            raise PromptTooLong(
                f"the prompt has {prompt_tokens} tokens and leaves no room for an answer",
                role="target",
                hint=f"the model's context is {target.context} tokens; --max-total-tokens may be lower",
            )
        if look.fast_accept is not None and job.fast is None:
            raise ConfigError("fast acceptance needs Job.fast", hint="verifiers.fast makes it")
        fast = job.fast is not None
        self.tree = StepTree(look.depth, look.width, budget, look.half_sentence_guard, fast, look.hedge)
        self.tree.root.state = s
        self.policy = policy.make(look, self.tree, job.experience)
        self._witness = Witness(job.on_event, self._flight.now)
        self.roles, self._ahead = target.roles, job.verifier is not None
        self._sharing = list(self.roles.values()) if self._ahead else [self.roles["target"]]
        self._writing = Writing(job, self.tree, self.policy, self._flight, self._spares, self.roles)
        self._hearing = Hearing(job, self._flight, self._witness, self._writing.branch, self.policy.priority)
        self.trace.prompt_tokens = prompt_tokens
        self.trace.seeded = job.sampling.temperature == 0 or all(b.seeded for b in self.roles.values())
        job.listen(lambda: self._flight.arrive(Arrival(None, self.tree.root, None, Cancelled("stopped"))))

    def __enter__(self) -> Self:
        for backend in self._sharing:
            backend.sharing.begin(self._ahead)
        self.policy.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self._flight.catch_up()
        finally:
            try:
                self._writing.end()
                self._flight.land()
            finally:
                self._spares.end()  # once they have written: whatever happens here, no thread outlives its request
                self.policy.__exit__()
                for backend in self._sharing:
                    backend.sharing.end(self._ahead)

    def free(self, role: str, node: Node, steps: int = 1) -> bool:
        """Whether a role can be asked for so many steps after ``node``: it is there, has not failed just now, and has
        slots for us."""
        if role not in self.roles or self._resting.get(role, 0.0) > time.monotonic():
            return False
        look, share = self.job.lookahead, self.roles[role].share(self.job.lookahead)
        if share is None and not look.hedge:
            return True
        return policy.fits(look, role, share, self._flight.running(role), self.tree.hedged(node), steps)

    def branch(self, role: str, node: Node, child: Node | None = None, gen: SglGen | None = None) -> Branch:
        """Forks the state after ``node`` onto a role's runtime and lets it write the next step there.

        Args:
            child: the drafted node that the step will lead to; None when the target writes.
            gen: what to generate instead of a step.
        """
        branch = self._writing.begin(role, node, child, gen).key
        self.policy.begun(branch)
        self._witness.begun(role, node, child)
        return branch

    def ask(self, child: Node, pair: Pair) -> None:
        """Puts a pair to the verifier, unless it is clear without one."""
        self._hearing.ask(child, pair)

    def weigh(self, child: Node) -> None:
        """Asks whether a drafted step is so certain that the target need not write its own version."""
        self._hearing.weigh(child)

    def first_done(self) -> Node:
        """Waits for a draft step, a target step or a verdict, whichever is first; returns the prefix it belongs to.

        Raises:
            LookaheadError: the target failed; Cancelled: the answer was stopped.
        """
        arrival = self._flight.first_done()
        node, child, result = arrival.node, arrival.child, arrival.result
        if arrival.key is None:
            raise result  # it was stopped, whatever has become of that node meanwhile
        if isinstance(arrival, Sent):
            self.policy.ended(arrival.key, 0 if isinstance(result, LookaheadError) else len(result.ids))
        if node.dropped or (child.dropped if child is not None else node.chosen is not None):
            return node
        if isinstance(arrival, Sent):
            self._expanded(node, arrival) if child is None else self._drafted(child, arrival)
        elif isinstance(arrival.key, Inquiry) and child is not None:
            if isinstance(result, Verdict):
                if result.failed:
                    self.trace.failures["judge"] += 1
                self._hearing.ruled(arrival.key, child, result)
            else:
                self._hearing.consult(arrival.key, child, result)
        return node

    def all_done(self) -> list[Node]:
        """Waits for every generation and verdict in flight; returns the prefixes they belong to."""
        nodes = []
        while self._flight:
            nodes.append(self.first_done())
        return list(dict.fromkeys(nodes))

    def _drafted(self, child: Node, sent: Sent) -> None:
        if child.verdict is not None:
            return  # too late: its step is decided
        if isinstance(sent.result, LookaheadError):
            self.trace.failures["draft"] += 1
            self._resting["draft"] = time.monotonic() + REST_SECONDS
            self._refuse(child, Verdict(False, "draft", str(sent.result), failed=True))
            return
        written, child.state = self._writing.step(sent)
        child.confidence = policy.confidence(sent.result.meta, len(written.ids))
        self.tree.drafted(child, written)
        self._witness.drafted(child)

    def _expanded(self, node: Node, sent: Sent) -> None:
        if isinstance(sent.result, LookaheadError):
            if not self._unreadable(node, sent.result):
                raise sent.result
            return
        node.target, node.target_state = self._writing.step(sent)
        self._witness.written(node)
        for late in node.children:
            if late.step is None and late.verdict is None:
                self._refuse(late, Verdict(False, "late", "the target was faster than the draft"))

    def _prepare(self) -> bool:
        return self._writing.prepare() or self._spares.refill()

    def _unreadable(self, node: Node, error: LookaheadError) -> bool:
        """Whether it is the drafted step before it that the target cannot go on from: tokens that it does not know."""
        refused = isinstance(error, RuntimeRefused) and not error.retryable and not isinstance(error, PromptTooLong)
        if not refused or node.source != "draft" or node.verdict is not None:
            return False
        self.trace.failures["draft"] += 1
        self._refuse(node, Verdict(False, "draft", str(error), failed=True))
        return True

    def _refuse(self, child: Node, verdict: Verdict) -> None:
        child.verdict = verdict
        self._witness.verified(child, verdict)

    def cancel_all_but_chosen(self, node: Node) -> None:
        """The step after ``node`` is decided: what hangs on another version of it is stopped, on the server too."""
        if node.target is None and node.expanding is not None:
            self._flight.give_up(node.expanding, Outcome.CANCELLED)
            self._witness.dropped("target", node, None, Outcome.CANCELLED)
        if node.correction is not None and node.correction is not node.chosen:
            self._drop(node.correction, Outcome.CANCELLED)
        for child in (c for c in node.children if c is not node.chosen):
            refused = child.verdict and not child.verdict.accepted  # another alternative may have agreed too
            self._drop(child, Outcome.REJECTED if refused else Outcome.CANCELLED)

    def _drop(self, node: Node, outcome: Outcome) -> None:
        """``outcome`` is for the draft step itself and its verdict; everything that follows it is cancelled."""
        for below in node.subtree():
            below.dropped = True
            own = outcome if below is node else Outcome.CANCELLED
            for branch in _of(below):
                self._flight.give_up(branch, own)
            self._flight.give_up(below.expanding, Outcome.CANCELLED)
            self._witness.dropped(below.source, below.parent, below, own)

    def keep(self, node: Node) -> None:
        """A step of the answer: its branches get their outcomes; its text goes to the program's state, soon."""
        parent, kept = node.parent, node.step
        assert parent is not None and kept is not None
        drafted = node.source == "draft"
        if self.tree.ends(node) and not kept.complete:
            node.step = kept = completed(kept, self.roles["draft" if drafted else "target"].tokenizer)
        outcome = Outcome.ACCEPTED if drafted else Outcome.CORRECTED if parent.children else Outcome.BONUS
        for branch in (*_of(node), parent.expanding):
            self._flight.give_up(branch, outcome)
        self.ended = self.tree.ends(node)
        finish = ("stop" if kept.final else "length") if self.ended else ""
        self._flight.later(partial(self._tell, kept, parent, node.source, outcome, self._flight.now(), finish))
        self._witness.kept(parent, node, outcome)
        self.policy.decided(parent)
        self.trace.cycles += not drafted
        if self.ended:
            self._witness.ended(node, finish)
        node.parent = None  # the past of a long answer need not stay in memory

    def _tell(self, kept: Step, parent: Node, source: str, outcome: Outcome, seconds: float, finish: str) -> None:
        if self._left:  # by who listens, at an earlier step
            return
        self._note(
            kept,
            source,
            outcome.value,
            seconds,
            target_text=parent.target.text if parent.target else None,
            draft_texts=tuple(c.step.text if c.step else None for c in parent.children),
            verdicts=tuple(c.verdict for c in parent.children),
            confidences=tuple(c.confidence for c in parent.children) if self.job.lookahead.gate else (),
        )
        self.trace.finish = finish  # once all has been told: whoever sees it in another thread misses no step

    def write_to_the_end(self) -> None:
        """The baseline: the target writes everything in one generation, which is cut into steps afterwards.

        Raises:
            LookaheadError: the target failed.
        """
        gen = sgl.gen("answer", max_tokens=self.tree.budget, **self.job.sampling.drawn())
        branch = self.branch("target", self.tree.root, gen=gen)
        arrival = self._flight.first_done()
        result, known, node = arrival.result, self.roles["target"].tokenizer, self.tree.root
        if isinstance(result, LookaheadError):
            raise result
        for kept in split_ids(result.ids, result.finish, known, result.ends):
            self._note(kept, "target", "written", self._flight.now())
            node, prefix = Node(None, node.position + 1, kept, "target"), node
            self._witness.kept(prefix, node, Outcome.BONUS)
        branch.close(Outcome.BONUS)
        self.trace.finish, self.ended = "length" if result.finish == "length" else "stop", True
        self._witness.ended(node, self.trace.finish)

    def _note(self, kept: Step, source: str, outcome: str, seconds: float, **versions: Any) -> None:
        self.s += kept.tokens()
        position = len(self.trace.steps)
        record = StepRecord(position, kept.text, len(kept.ids), source, outcome, kept.ending.value, seconds, **versions)
        known = self.roles["target"].tokenizer  # the answer's tokens are those that the target reads
        own = kept.vocabulary == known.vocabulary
        self.trace.add(record, kept.ids if own else resolve(kept.tokens(), known))
        if self.job.on_step:
            self._left = True
            self.job.on_step(record)
            self._left = False


def _of(node: Node) -> Iterator[Branch]:
    """What was asked of runtimes for the drafted step that leads to ``node``, and about it."""
    if node.drafting is not None:
        yield node.drafting
    for inquiry in (node.asked, node.weighed):
        yield from inquiry.branches if inquiry is not None else ()
