"""What the parts of one answer share: its request, its runtimes, its steps so far, its branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.policy import Policy
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import backend_of
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import ROLES, Branch, Purpose
from lr_sglang.steps.events import EventEmitter
from lr_sglang.steps.trace import Trace
from lr_sglang.steps.tree import Node, StepTree

# After a failed draft request, before the next one: the target decodes alone meanwhile.
BACKOFF_SECONDS = 2.0


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
        """Makes the branch of the next generation of ``state``, which begins so many ``tokens``
        after ``node``, and records it.

        Args:
            child: the drafted node that it writes or verifies; None for the target's version.
        """
        role = ROLES[purpose]
        alternative = child.alternative if child else 0
        seed, place = self.request.draws(role, node, alternative)
        place += tokens
        ahead = self.tree.ahead(node)
        branch = Branch(role, node.position, alternative, seed, self.request.key, ahead, place)
        branch.purpose = purpose
        branch.state = state
        branch.node = node
        branch.child = child
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
