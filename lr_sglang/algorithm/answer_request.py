"""The request for one answer: settings, verifiers and callbacks; and what the parts of the answer
share: its request, its runtimes, its steps so far, its branches.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.inquiry import Verifier
from lr_sglang.algorithm.policy import Policy, RunStatistics
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.doubts import JudgeCheck
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import backend_of
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.sglang_api.plugin_protocol import WRITTEN_FIELD
from lr_sglang.steps.branch import ROLES, Branch, Purpose
from lr_sglang.steps.trace import Event, EventEmitter, StepRecord, Trace
from lr_sglang.steps.tree import Node, StepTree

# After a failed draft request, before the next one: the target decodes alone meanwhile.
BACKOFF_SECONDS = 2.0


@dataclass(frozen=True)
class Constraints:
    """What the tokens of an answer have to keep to, beside how they are drawn.

    Attributes:
        min_tokens: no end of sequence is drawn before so many tokens.
        ignore_eos: nothing but the token budget ends the answer; ids that end a sequence do not.
        stop_token_ids: further ids that end the answer, in the target's vocabulary.
        frequency_penalty: subtracted from the logit of a token for each time that the answer has
            it; ``presence_penalty``: once; ``repetition_penalty``: divides it, or multiplies it
            where it is negative.
        logit_bias: added to logits, by token id of the target's vocabulary.
    """

    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[str, float] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Those that are given."""
        neutral = {"repetition_penalty": 1}
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return [name for name, value in given.items() if value and value != neutral.get(name)]

    def after(
        self, ids: Sequence[int], most: int, own_ids: bool, counts: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of ``gen`` that keep them in a part of the answer, and SGLang's parameters
        for which ``gen`` has none.

        A runtime without our plugin counts the tokens of its own request only: for frequencies,
        what the answer has before is in the bias.

        Args:
            ids: the answer's tokens before it.
            most: tokens of the part.
            own_ids: whether the runtime has the target's vocabulary; ids say nothing to another.
            counts: whether it counts them, as the request says how many they are.
        """
        options: dict[str, Any] = {
            "ignore_eos": self.ignore_eos,
            "min_tokens": max(0, min(self.min_tokens - len(ids), most)),
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }
        more: dict[str, Any] = {"repetition_penalty": self.repetition_penalty}
        if not own_ids:
            return options, more
        options["stop_token_ids"] = list(self.stop_token_ids)
        more["logit_bias"] = bias = dict(self.logit_bias)
        if counts:
            more["custom_params"] = {WRITTEN_FIELD: len(ids)}
        elif self.frequency_penalty:
            for token, times in Counter(ids).items():
                bias[str(token)] = bias.get(str(token), 0.0) - self.frequency_penalty * times
        return options, more


NO_CONSTRAINTS = Constraints()


@dataclass(eq=False)
class AnswerRequest:
    """The settings of one answer, with its callbacks and its record.

    Attributes:
        verifier: compares two versions of a step; the baseline needs none.
        conclusion_verifier: the same for the steps after the thinking; None: as ``verifier``.
        question, sample: identify the answer among those with the same ``sampling.seed``; empty
            and 0 where the seed is the answer's own.
        experience: statistics shared by all answers of a run.
        on_step: called with each step as it is kept, on the event loop, which waits for it.
        on_tokens: called with the ids after the last kept step while the target alone writes on,
            on the event loop; None lets its generations of several steps arrive whole.
        on_event: called with each event while the answer is made, on the event loop, which waits
            for it.
        key: a router keeps requests with the same key on one worker; unique by default.
        check: the judge's measured false accepts, if the verifier may ask a judge.
        trace: of the answer; filled while the program runs, complete when the program has returned.
        constraints: on the answer's tokens.
        lossless: whether only the text of an exact answer counts, not that it looks ahead
            (``Ways``).
    """

    lookahead: Lookahead = field(default_factory=Lookahead)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    verifier: Verifier | None = None
    conclusion_verifier: Verifier | None = None
    question: str = ""
    sample: int = 0
    experience: RunStatistics = field(default_factory=RunStatistics)
    on_step: Callable[[StepRecord], None] | None = None
    on_tokens: Callable[[Sequence[int]], None] | None = None
    on_event: Callable[[Event], None] | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    check: JudgeCheck | None = None
    trace: Trace = field(default_factory=Trace)
    constraints: Constraints = NO_CONSTRAINTS
    lossless: bool = False
    _stopped: bool = False
    _wake: Callable[[], object] | None = field(default=None, repr=False)

    @property
    def drafts(self) -> bool:
        """Whether steps are drafted; the target answers alone where the judge accepts too many
        pairs that differ.
        """
        return self.check is None or self.check.trusted(self.lookahead.max_false_accepts)

    def stop(self) -> None:
        """Ends the answer, from any thread: its requests are cancelled, and its program raises
        ``Cancelled``.
        """
        self._stopped = True
        if self._wake:
            self._wake()

    def listen(self, wake: Callable[[], object] | None) -> None:
        """Sets the function that ``stop`` calls; None when the answer has ended."""
        self._wake = wake
        if self._stopped and wake is not None:
            wake()

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of its requests, by SGLang's names. With some values a server does not verify
        drafted tokens exactly, or follow a seed (``ServerFacts.relaxes``).
        """
        return {
            "temperature": self.sampling.temperature,
            "min_p": self.sampling.min_p,
            "min_new_tokens": self.constraints.min_tokens,
            "frequency_penalty": self.constraints.frequency_penalty,
            "presence_penalty": self.constraints.presence_penalty,
            "repetition_penalty": self.constraints.repetition_penalty,
        }

    @property
    def exact(self) -> bool:
        """Whether the answer is the target's own draw: plain decoding, or lookahead that keeps a
        drafted step only where the target has drawn the same tokens.
        """
        return self.verifier is None or getattr(self.verifier, "exact", False)

    @property
    def splits_after_thinking(self) -> bool:
        """Whether what follows the thinking is an answer of its own (``concluding``)."""
        return self.conclusion_verifier is not None and not self.exact

    def concluding(self) -> AnswerRequest:
        """The request for what follows the thinking: with a verifier and a seed of its own, which a
        plain request after the same text can be given too.
        """
        return replace(
            self,
            verifier=self.conclusion_verifier,
            sampling=self.sampling.replace(seed=self.seed("conclusion")),
            question="",
            sample=0,
            check=None,
            lossless=True,
        )

    def draws(self, role: str, node: Node, alternative: int = 0) -> tuple[int, int]:
        """The seed of a branch for the step after ``node``, and its place (``Request``).

        With shared draws, the target's version of a step and the first drafted one use the same
        random numbers (docs/theory.md). An exact answer has one seed, and the place of a step is
        the number of the answer's tokens before it. Otherwise every step has a seed of its own: a
        verdict on a step has seen numbers after the end of the drafted version, which the next
        step must not use.
        """
        drafted = role == "draft" and alternative == 0 and self.lookahead.shared_draws
        shared = role == "target" or drafted
        if not shared:
            return self.seed(role, node.position, node.lineage, alternative), 0
        if self.exact:
            return self.seed(), node.tokens_used
        return self.seed("step", node.position, node.lineage), 0

    def seed(self, *where: Any) -> int:
        """The seed of the answer, or of its part ``where``."""
        return derived_seed(self.sampling.seed, self.question, self.sample, *where)


def derived_seed(seed: int, question: str, sample: int, *where: Any) -> int:
    """A seed of 31 bits for one sample of a question, or for its part ``where``; ``seed`` itself
    for a whole answer that question and sample do not identify.
    """
    if not (question or sample or where):
        return seed
    key = repr((seed, question, sample, *where)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True, eq=False)
class AnswerContext:
    """One answer in the open assistant turn of a program's state, as its parts know it.

    Attributes:
        request: what is asked for, with the answer's record.
        state: the program's state, which the answer fills.
        roles: backends by role.
        tree: the steps so far.
        policy: chooses the nodes that get branches.
        branches: the requests in flight.
        emitter: of events.
        backoff_until: until when a role is left alone, in seconds of the loop's clock.
    """

    request: AnswerRequest
    state: ProgramState
    roles: Mapping[str, RuntimeBackend]
    tree: StepTree
    policy: Policy
    branches: Branches
    emitter: EventEmitter
    backoff_until: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begin_answer(cls, state: ProgramState, request: AnswerRequest) -> AnswerContext:
        """The context of a new answer.

        Raises:
            PromptTooLong: the prompt leaves no room for an answer.
        """
        target = backend_of(state, "target")
        executor = state.stream_executor
        request.trace.prompt_tokens, budget = target.budget(executor, request.limits)
        tree = _tree(request, state, budget)
        tree.concluded = request.splits_after_thinking and target.thought_ended(executor)
        chosen = policy.make_policy(request.lookahead, tree, request.experience, executor.loop.time)
        branches = Branches(request.trace, executor.loop, chosen)
        emitter = EventEmitter(request.on_event, branches.now)
        branches.done = emitter.done
        return cls(request, state, target.roles, tree, chosen, branches, emitter)

    def conclude(self) -> AnswerContext:
        """The context of the answer after the thinking, in the same turn; the policy follows its
        tree from now on.
        """
        request = self.request.concluding()
        last = self.tree.root
        tree = _tree(request, self.state, self.tree.room(last))
        tree.root.follow(last)
        self.policy.tree = tree
        return replace(self, request=request, tree=tree)

    @property
    def trace(self) -> Trace:
        """The answer's record."""
        return self.request.trace

    @property
    def target(self) -> RuntimeBackend:
        """The target's backend."""
        return self.roles["target"]

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self.state.stream_executor.loop.time()  # type: ignore[no-any-return]

    def shares_vocabulary(self, role: str) -> bool:
        """Whether the tokens of a role's runtime are the target's."""
        return self.roles[role].tokenizer.vocabulary == self.target.tokenizer.vocabulary

    def can_ask(self, role: str) -> bool:
        """Whether a role can be asked for a step: it has a runtime, may draft, and did not fail a
        moment ago.
        """
        if role == "draft" and not self.request.drafts:
            return False
        return role in self.roles and self.backoff_until.get(role, 0.0) <= self.now()

    def draft_failed(self, error: LookaheadError) -> None:
        """Counts a failure of the draft, which is left alone for a while."""
        self.trace.failed("draft", error.message)
        self.leave_draft_alone()

    def leave_draft_alone(self) -> None:
        """Asks the draft for nothing for a while."""
        self.backoff_until["draft"] = self.now() + BACKOFF_SECONDS

    def new_branch(
        self,
        purpose: Purpose,
        state: ProgramState,
        node: Node,
        child: Node | None,
        tokens: int = 0,
    ) -> Branch:
        """Makes the branch of a generation that ``state`` is to begin, or has just begun, so many
        ``tokens`` after ``node``, and records it.

        Args:
            child: the drafted node that it writes or verifies; None for the target's version.
        """
        role = ROLES[purpose]
        alternative = child.alternative if child else 0
        seed, place = self.request.draws(role, node, alternative)
        branch = Branch(
            role,
            node.position,
            alternative,
            seed=seed,
            place=place + tokens,
            key=self.request.key,
            order=self.tree.ahead(node),
            purpose=purpose,
            state=state,
            node=node,
            child=child,
        )
        state.stream_executor.request = branch
        # a node that was left behind is in the tree no more
        in_tree = node is self.tree.root or node.parent is not None
        branch.number = self.emitter.begun(role, node if in_tree else self.tree.root, child)
        self.branches.begin(branch)
        return branch


def _tree(request: AnswerRequest, state: ProgramState, budget: int) -> StepTree:
    """The tree of an answer that begins after ``state``."""
    look = request.lookahead
    # Where only the target's own tokens are kept, a step may begin in the middle of a sentence.
    guard = look.half_sentence_guard and not request.exact
    tree = StepTree(look.depth, budget, guard)
    tree.root.state = state
    return tree
