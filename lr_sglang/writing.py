"""The threads that write for an answer: each in a fork of its own, on the runtime of the role that it writes for.

Two things are not left until the program has woken up, for that and waking another thread take as long as some tokens
of a small draft. The draft goes on after a whole step without being told, as far as the window is open: the program
hears of every step, in order, and claims what follows or stops it. And in the sync schedule, where it is known early
after which prefixes the target will write, its requests are made ready while the draft is still at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lr_sglang.backend import RuntimeBackend
from lr_sglang.call import Call
from lr_sglang.dsl import after, step, watch
from lr_sglang.errors import LookaheadError
from lr_sglang.flight import Flight, Sent, Way
from lr_sglang.job import Job
from lr_sglang.policy import Policy
from lr_sglang.sglang_api.interpreter import ProgramState, SglGen
from lr_sglang.spares import Spares
from lr_sglang.steps import Ending, Step, make_step
from lr_sglang.tree import Branch, Node, StepTree, lineage

# Requests that are ready at a time, where the runtime does not say how many it takes.
MOST_HELD = 32


class Writing:
    """Has steps written, and makes steps of what was.

    Args:
        flight: where they arrive.
        spares: of the answer's state, for the threads.
        roles: the runtimes.
    """

    def __init__(
        self,
        job: Job,
        tree: StepTree,
        policy: Policy,
        flight: Flight,
        spares: Spares,
        roles: Mapping[str, RuntimeBackend],
    ) -> None:
        self._job, self._tree, self._policy, self._flight, self._spares = job, tree, policy, flight, spares
        self._roles, self._drawn = roles, job.sampling.drawn()
        self._steps: dict[tuple[int, bool], SglGen] = {}
        self._held: dict[Node, Sent] = {}
        self._draft: Sent | None = None

    def begin(self, role: str, node: Node, child: Node | None, gen: SglGen | None = None) -> Sent:
        """The step after ``node``, unless it is being written already, or ``gen`` in place of a step."""
        sent = self._flight.claim(child) if role == "draft" else None if gen else self._ready(node)
        if sent is None:
            sent = self._send(self.branch(role, node, child), node, child)
            self._flight.begin(sent.key, sent.call)
            self._write(sent, gen)
        else:
            self._flight.begin(sent.key, sent.call)
            sent.call.release()
        if child is not None:
            self._draft = sent
        return sent

    def branch(self, role: str, node: Node, child: Node | None) -> Branch:
        """The books of one request for the step after ``node``, or about it."""
        alternative = child.alternative if child else 0
        seed = self._job.seed(role, node.position, node.lineage, alternative)
        return Branch(role, node.position, alternative, seed, hedged=self._tree.hedged(node))

    def _ready(self, node: Node) -> Sent | None:
        """What is held ready for the step after ``node``, unless it has failed already."""
        sent = self._held.pop(node, None)
        if sent is not None and not sent.takes_turn():
            self._let_go(sent)
            return None
        return sent

    def _let_go(self, sent: Sent) -> None:
        sent.call.cancel()
        if sent.state is not None:
            self._spares.back(sent.state, fit=False)

    def prepare(self) -> bool:
        """Makes one request ready that will be needed; False when there is none that is known now."""
        if self._draft is not None:
            sent, self._draft = self._draft, None
            sent.plan = self._plan(sent)
            if sent.plan is not None and sent.takes_turn():
                self._ask(sent.plan)
        for node in [node for node in self._held if node.dropped or node.chosen is not None]:
            self._let_go(self._held.pop(node))
        look = self._job.lookahead
        most = (self._roles["target"].share(look) or MOST_HELD) if self._job.verifier else 0  # none for the baseline
        if look.schedule == "sync" and self._policy.steady and len(self._held) < most:
            for node in self._tree.to_expand(self._tree.depth):
                if node not in self._held:
                    self._held[node] = sent = self._send(self.branch("target", node, None), node, None)
                    sent.held = True
                    sent.call.hold()
                    self._write(sent)
                    return True
        return False

    def end(self) -> None:
        """Lets go of what was made ready and is not needed."""
        while self._held:
            self._let_go(self._held.popitem()[1])

    def _send(self, branch: Branch, node: Node, child: Node | None) -> Sent:
        sent = Sent(branch, node, child)
        sent.call = Call(branch.seed, self._policy.priority(node), lambda r: self._written(sent, r), self._job.key)
        return sent

    def _write(self, sent: Sent, gen: SglGen | None = None) -> None:
        role, node, look = sent.key.role, sent.node, self._job.lookahead
        if gen is None:
            gen = self._step(min(look.max_step_tokens, self._tree.room(node)), sent.child is not None)
        # in sync a drafted step is weighed before the next is asked for
        weighs = self._job.fast is not None and look.schedule == "sync"
        if sent.child is not None and self._policy.steady and not weighs:
            steps = self._tree.depth - self._tree.ahead(node) - 1
            sent.way = Way(steps, self._tree.room(node) - look.max_step_tokens, sent.child.lineage)
        sent.before = node.step
        sent.state = watch(self._spares.fork(node.state, role), sent.call)
        sent.state += gen

    def _step(self, tokens: int, drafts: bool) -> SglGen:
        known = self._steps.get((tokens, drafts))
        if known is None:
            logprobs = True if drafts and self._job.lookahead.gate else None
            known = step(max_tokens=tokens, return_logprob=logprobs, **self._drawn)
            self._steps[tokens, drafts] = known
        return known

    def _plan(self, sent: Sent) -> Sent | None:
        """What the draft goes on with after this step, as far as the window is open.

        It is what the program would ask for itself, with the same seed. Nothing where the steps before it could leave
        it less than the usual room.
        """
        most = self._job.lookahead.max_step_tokens
        if sent.way is None or not sent.way.steps or sent.way.room < most:
            return None
        position, (steps, room, before) = sent.key.position + 1, sent.way
        branch = Branch("draft", position, seed=self._job.seed("draft", position, before, 0))
        plan = self._send(branch, sent.node, None)
        plan.way, plan.state = Way(steps - 1, room - most, lineage(before)), sent.state
        return plan

    def _written(self, sent: Sent, result: Any) -> None:
        """In the thread that has written it: it goes on after a whole step, if there is something to go on with."""
        sent.result = result
        if sent.way is not None and sent.state is not None:
            whole, asked = self._whole(sent), not sent.takes_turn()
            then = sent.plan if asked else self._plan(sent) if whole else None
            if then is not None:
                then.before = sent.step
                watch(sent.state, then.call)
                if not asked:
                    self._ask(then)
            if whole:
                sent.then = then
            elif then is not None:
                then.call.cancelled, then.wanted, sent.fit = True, False, False
        if sent.wanted and not (sent.held and sent.takes_turn()):
            self._flight.arrive(sent)

    def _ask(self, then: Sent) -> None:
        assert then.state is not None
        then.state += self._step(self._job.lookahead.max_step_tokens, True)

    def _whole(self, sent: Sent) -> bool:
        if sent.call.cancelled or isinstance(sent.result, LookaheadError):
            return False
        try:
            sent.step = made = self._made(sent)
        except Exception:  # noqa: BLE001 - it is made again where somebody hears of its failure
            return False
        return made.ending is Ending.DELIMITER and made.ids == sent.result.ids

    def step(self, sent: Sent) -> tuple[Step, ProgramState]:
        """The step that was written, and the state after it; what a runtime wrote past the step's end is in neither."""
        made = sent.step or self._made(sent)
        return made, after(sent.node.state, made.tokens())

    def _made(self, sent: Sent) -> Step:
        written, known = sent.result, self._roles[sent.key.role].tokenizer
        return make_step(written.ids, written.finish, sent.before, known, written.ends)
