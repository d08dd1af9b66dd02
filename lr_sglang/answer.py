"""One answer in the making: starts branches for a program, hears of their ends, keeps steps, leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Self

import sglang as sgl
from sglang.lang.interpreter import ProgramState
from sglang.lang.ir import SglGen

from lr_sglang import policy
from lr_sglang.dsl import Inquiry, Spares, backend_of, end, fork, light, step, watch
from lr_sglang.errors import Cancelled, ConfigError, LookaheadError, PromptTooLong, RuntimeRefused
from lr_sglang.flight import Arrival, Flight
from lr_sglang.hearing import Hearing
from lr_sglang.job import Job
from lr_sglang.steps import Step, make_step, split_ids
from lr_sglang.trace import StepRecord
from lr_sglang.transport import Call
from lr_sglang.tree import Branch, Node, Outcome, Pair, StepTree, Verdict
from lr_sglang.witness import Witness

# A draft that failed is left alone for a while, then tried again: plain target decoding goes on meanwhile.
REST_SECONDS = 2.0
# Threads that an answer keeps ready for the branches that it will need next.
MOST_SPARES = 8


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
        self._drawn = job.sampling.drawn()
        self.ended = False
        look = job.lookahead
        at_once = look.depth + 1 if look.schedule == "sync" else 1 + look.width
        self._spares = Spares(s, min(at_once, MOST_SPARES) if job.verifier else 0)
        self._flight = Flight(self.trace, self._spares.refill)
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
        self._hearing = Hearing(job, self._flight, self._witness, self._branch, self.policy.priority)
        self.roles = target.roles
        self.trace.prompt_tokens = prompt_tokens
        self.trace.seeded = job.sampling.temperature == 0 or all(b.seeded for b in self.roles.values())
        job.listen(lambda: self._flight.arrive(Arrival(None, self.tree.root, None, Cancelled("stopped"))))

    def __enter__(self) -> Self:
        self.policy.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._spares.end()
        self._flight.land()
        self.policy.__exit__()

    def free(self, role: str, node: Node, steps: int = 1) -> bool:
        """Whether a role can be asked for so many steps after ``node``: it is there, has not failed just now, and has
        slots for us."""
        if role not in self.roles or self._resting.get(role, 0.0) > time.monotonic():
            return False
        look, slots, running = self.job.lookahead, self.job.slots.get(role), self._flight.running(role)
        return policy.fits(look, role, slots, running, self.tree.hedged(node), steps)

    def branch(self, role: str, node: Node, child: Node | None = None, gen: SglGen | None = None) -> Branch:
        """Forks the state after ``node`` onto a role's runtime and lets it write the next step there.

        Args:
            child: the drafted node that the step will lead to; None when the target writes.
            gen: what to generate instead of a step.
        """
        branch = self._branch(role, node, child)
        state, look = self._spares.fork(node.state, role), self.job.lookahead
        heard, priority = self._flight.arrive, self.policy.priority(node)
        call = Call(branch.seed, priority, lambda r: heard(Arrival(branch, node, child, r, state)), self.job.key)
        self._flight.begin(branch, call)
        self.policy.begun(branch)
        self._witness.begun(role, node, child)
        tokens = min(look.max_step_tokens, self.tree.room(node))
        watch(state, call)
        logprobs = True if look.gate and child is not None else None
        state += gen or step(max_tokens=tokens, return_logprob=logprobs, **self._drawn)
        end(state)  # once it has written: whatever happens here, no thread outlives its request
        return branch

    def ask(self, child: Node, pair: Pair) -> None:
        """Puts a pair to the verifier, unless it is clear without one."""
        self._hearing.ask(child, pair)

    def weigh(self, child: Node) -> None:
        """Asks whether a drafted step is so certain that the target need not write its own version."""
        self._hearing.weigh(child)

    def _branch(self, role: str, node: Node, child: Node | None) -> Branch:
        alternative = child.alternative if child else 0
        seed = self.job.seed(role, node.position, node.lineage, alternative)
        return Branch(role, node.position, alternative, seed, hedged=self.tree.hedged(node))

    def first_done(self) -> Node:
        """Waits for a draft step, a target step or a verdict, whichever is first; returns the prefix it belongs to.

        Raises:
            LookaheadError: the target failed; Cancelled: the answer was stopped.
        """
        arrival = self._flight.first_done()
        node, child, result = arrival.node, arrival.child, arrival.result
        if arrival.key is None:
            raise result  # it was stopped, whatever has become of that node meanwhile
        if isinstance(arrival.key, Branch):
            self.policy.ended(arrival.key, 0 if isinstance(result, LookaheadError) else len(result.ids))
        if node.dropped or (child.dropped if child is not None else node.chosen is not None):
            return node
        if isinstance(arrival.key, Inquiry):
            assert child is not None
            if isinstance(result, Verdict):
                if result.failed:
                    self.trace.failures["judge"] += 1
                self._hearing.ruled(arrival.key, child, result)
            else:
                self._hearing.consult(arrival.key, child, result)
        elif child is not None:
            self._drafted(child, arrival)
        elif isinstance(result, LookaheadError):
            if not self._unreadable(node, result):
                raise result
        else:
            node.target, node.target_state = self._step("target", arrival)
            self._witness.written(node)
            for late in node.children:
                if late.step is None and late.verdict is None:
                    self._refuse(late, Verdict(False, "late", "the target was faster than the draft"))
        return node

    def all_done(self) -> list[Node]:
        """Waits for every generation and verdict in flight; returns the prefixes they belong to."""
        nodes = []
        while self._flight:
            nodes.append(self.first_done())
        return list(dict.fromkeys(nodes))

    def _drafted(self, child: Node, arrival: Arrival) -> None:
        if child.verdict is not None:
            return  # too late: its step is decided
        if isinstance(arrival.result, LookaheadError):
            self.trace.failures["draft"] += 1
            self._resting["draft"] = time.monotonic() + REST_SECONDS
            self._refuse(child, Verdict(False, "draft", str(arrival.result), failed=True))
            return
        written, child.state = self._step("draft", arrival)
        child.confidence = policy.confidence(arrival.result.meta, len(written.ids))
        self.tree.drafted(child, written)
        self._witness.drafted(child)

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

    def _step(self, role: str, arrival: Arrival) -> tuple[Step, ProgramState | None]:
        """The step that a branch wrote, and the state after it."""
        node, written, known = arrival.node, arrival.result, self.roles[role].tokenizer
        before = node.step.text if node.step is not None and node.cut else ""
        made = make_step(written.ids, written.finish, before, known.decode, written.ends, known.vocabulary)
        if made.ids == written.ids:
            return made, arrival.state
        state = fork(node.state, role)  # tokens after the step's end were dropped, but the branch's text has them
        state += made.tokens()
        end(state)
        return made, state

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
        """A step of the answer: its text goes to the program's state, its branches get their outcomes."""
        parent, kept = node.parent, node.step
        assert parent is not None and kept is not None
        drafted = node.source == "draft"
        outcome = Outcome.ACCEPTED if drafted else Outcome.CORRECTED if parent.children else Outcome.BONUS
        for branch in (*_of(node), parent.expanding):
            self._flight.give_up(branch, outcome)
        self._note(
            kept,
            node.source,
            outcome.value,
            target_text=parent.target.text if parent.target else None,
            draft_texts=tuple(c.step.text if c.step else None for c in parent.children),
            verdicts=tuple(c.verdict for c in parent.children),
            confidences=tuple(c.confidence for c in parent.children) if self.job.lookahead.gate else (),
        )
        self._witness.kept(parent, node, outcome)
        self.policy.decided(parent)
        self.trace.cycles += not drafted
        if self.tree.ends(node):
            self.trace.finish, self.ended = "stop" if kept.final else "length", True
            self._witness.ended(node, self.trace.finish)
        node.parent = None  # the past of a long answer need not stay in memory

    def write_to_the_end(self) -> None:
        """The baseline: the target writes everything in one generation, which is cut into steps afterwards.

        Raises:
            LookaheadError: the target failed.
        """
        gen = sgl.gen("answer", max_tokens=self.tree.budget, **self._drawn)
        branch = self.branch("target", self.tree.root, gen=gen)
        arrival = self._flight.first_done()
        result, known, node = arrival.result, self.roles["target"].tokenizer, self.tree.root
        if isinstance(result, LookaheadError):
            raise result
        for kept in split_ids(result.ids, result.finish, known.decode, result.ends, known.vocabulary):
            self._note(kept, "target", "written")
            node, prefix = Node(None, node.position + 1, kept, "target"), node
            self._witness.kept(prefix, node, Outcome.BONUS)
        branch.close(Outcome.BONUS)
        self.trace.finish, self.ended = "length" if result.finish == "length" else "stop", True
        self._witness.ended(node, self.trace.finish)

    def _note(self, kept: Step, source: str, outcome: str, **versions: Any) -> None:
        self.s += kept.tokens()
        seconds, position = self._flight.now(), len(self.trace.steps)
        record = StepRecord(position, kept.text, len(kept.ids), source, outcome, kept.ending.value, seconds, **versions)
        self.trace.add(record, kept.ids)
        if self.job.on_step:
            self.job.on_step(record)


def _of(node: Node) -> Iterator[Branch]:
    """What was asked of runtimes for the drafted step that leads to ``node``, and about it."""
    if node.drafting is not None:
        yield node.drafting
    for inquiry in (node.asked, node.weighed):
        yield from inquiry.branches if inquiry is not None else ()
