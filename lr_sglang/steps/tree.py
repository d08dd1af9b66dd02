"""The step tree: which steps were drafted, written by the target, judged and decided. Plain data,
no I/O.

A node is a prefix of the answer that ends with ``node.step``. ``node.children`` are the drafted
versions of the step after it, ``node.version`` the target's own. A node is decided when one
version is ``chosen`` as its next node. When the root is decided, it moves to its next node, whose
step is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from lr_sglang.config import MAX_WIDTH
from lr_sglang.sglang_api.plugin_protocol import common_prefix
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.step import Pair, Step, Verdict, Vocabulary, split_ids
from lr_sglang.steps.token_text import TokenText

Ids = tuple[int, ...]

# Lineages are computed modulo a prime: they are unique among the nodes of a tree and do not grow
# with the answer. They do not depend on the width, because the number of the target's version is
# larger than that of any draft.
_LINEAGES = 2**61 - 1
_TARGETS = MAX_WIDTH


class Taken(NamedTuple):
    """What a read has given.

    Attributes:
        same: number of guessed tokens that are the target's own.
        whole: whether all of them are.
        tokens: number of tokens that are known now, and were not before.
    """

    same: int
    whole: bool
    tokens: int


@dataclass(eq=False)
class Version:
    """The target's tokens after a prefix. They are written by the target, or guessed by the draft
    and read by the target, which says up to where they are its own.

    Attributes:
        read_first: whether a drafted step is read by the target before it writes.
        known: its first tokens, as far as they are known.
        guess: drafted tokens after those, which the target has not read yet; None if there are
            none. Where it is (), the target is to read no token, and draws the next itself.
        guesser: the branch that wrote them; None where they are the drafted step.
        was_read: whether the target has read a part of it.
        branch: the request that writes, reads or guesses what comes after ``known``: in flight, or
            the one that completed it; None if nothing does, and while one request writes several
            steps.
        since: when it could begin, in seconds of the policy's clock; 0 if that is not known.
        step: the whole version; None as long as it is not known to its end.
        state: the program's state after it.
        runs_on: whether the draft's guesses do not end with the step: whole steps are kept as soon
            as they are known, and what is known after them begins the next version.
        last_portion: whether the next guess ends with the step all the same.
        next_guesser: the branch that writes the guess after ``guess``; ``next_guess`` is what it
            wrote.
        agreed: for each of the first known tokens, whether the draft wrote it.
        parted: by place in the version, the drafted tokens from the first on that is not the
            target's.
    """

    read_first: bool = False
    known: Ids = ()
    guess: Ids | None = None
    guesser: Branch | None = None
    was_read: bool = False
    branch: Branch | None = None
    since: float = 0.0
    step: Step | None = None
    state: Any = field(default=None, repr=False)
    runs_on: bool = False
    last_portion: bool = False
    next_guesser: Branch | None = None
    next_guess: Ids | None = None
    agreed: list[bool] = field(default_factory=list)
    parted: dict[int, Ids] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of its tokens so far, guessed ones included."""
        return len(self.known) + len(self.guess or ())

    @property
    def can_be_written(self) -> bool:
        """Whether the rest of it is unknown, and nobody writes or has to read anything first."""
        return self.step is None and self.branch is None and self.guess is None

    @property
    def is_read_now(self) -> bool:
        """Whether the target's request that reads drafted tokens of it is in flight."""
        return self.branch is not None and self.branch.purpose == "read" and not self.branch.ended

    def leads_to(self, step: Step | None) -> bool:
        """Whether it is this step as far as it is known and guessed."""
        return step is not None and (*self.known, *(self.guess or ())) == step.ids

    def take(self, draws: Sequence[int | None], *, decoded: bool = False) -> Taken:
        """Takes what the target says of the guess: the tokens that it draws too, and its own after
        them.

        Args:
            draws: of the target, from the first place of the guess on; None where one is not known.
                Nothing if the read has failed.
            decoded: whether the target has decoded them; if it has read the guess, its draws count
                up to the first that differs.
        """
        guess = self.guess or ()
        same = common_prefix(guess, tuple(draws))
        last = len(draws) if decoded else same + 1
        own = [token for token in draws[same:last] if token is not None]
        if own and same < len(guess):
            self.parted[len(self.known) + same] = guess[same:]
        self.agreed += [True] * same + [False] * len(own)
        self.known += (*guess[:same], *own)
        self.guess = None
        self.was_read = True
        return Taken(same, same == len(guess), same + len(own))

    def go_on(self) -> None:
        """Makes what the draft writes ahead the next guess."""
        if self.next_guess is not None:
            self.guess = self.next_guess
            self.guesser = self.next_guesser
        else:
            self.branch = self.next_guesser
        self.next_guesser = None
        self.next_guess = None

    def draft_version(
        self, step: Step, before: Step | None, tokenizer: Vocabulary, ends: Set[int]
    ) -> Step | None:
        """The draft's version of a step that this one begins with: the step itself where the draft
        wrote each of its tokens; None where it has not written it from its beginning.

        Args:
            before: the step before it.
            tokenizer, ends: as of ``make_step``.
        """
        size = len(step.ids)
        if 0 < size <= len(self.agreed) and all(self.agreed[:size]):
            return step
        place = min((place for place in self.parted if place < size), default=None)
        if place is None or not all(self.agreed[:place]):
            return None
        ids = (*self.known[:place], *self.parted[place])
        return split_ids(ids, "length", tokenizer, ends, before)[0]

    def after(self, size: int) -> Version:
        """The version of the next step: what is known after ``size`` tokens, and who writes the
        next portion.
        """
        rest = self.known[size:]
        if not self.runs_on:
            return Version(known=rest)
        made = replace(self, known=rest, agreed=self.agreed[size:], branch=None)
        made.parted = {at - size: ids for at, ids in self.parted.items() if at >= size}
        return made

    def complete(self, step: Step, state: Any) -> None:
        """Enters the whole version, and the program's state after it."""
        self.step = step
        self.state = state


@dataclass(eq=False)
class Node:
    """A prefix of the answer.

    Attributes:
        tokens_used: number of tokens of this prefix of the answer.
        lineage: a number for the versions of the steps before it. Together with the position it is
            unique among the nodes of a tree, so that no two of them draw with the same seed.
        confidence: the draft's mean log-probability of the step; None if it was not requested.
        correction: the node after this one whose step is the target's version; None until it is
            needed.
        version: the target's version of the step after it.
        number: the node's number in events (``EventEmitter``).
        drafting: the request that writes the step; ``proposed``: whether drafts were begun after
            this prefix.
        asked: the inquiry about the step; ``verdict`` is its outcome.
        chosen: the node after this one that was decided on, a drafted one or the correction.
        dropped: whether the node is no longer needed.
    """

    parent: Node | None
    position: int
    step: Step | None = None
    source: Literal["prompt", "draft", "target"] = "prompt"
    alternative: int = 0
    tokens_used: int = 0
    lineage: int = 0
    state: Any = field(default=None, repr=False)
    drafting: Branch | None = None
    confidence: float | None = None
    version: Version = field(default_factory=Version)
    children: list[Node] = field(default_factory=list)
    correction: Node | None = field(default=None, repr=False)
    proposed: bool = False
    asked: Any = field(default=None, repr=False)
    verdict: Verdict | None = None
    chosen: Node | None = None
    dropped: bool = False
    number: int | None = None

    @property
    def cut(self) -> bool:
        """Whether the prefix ends in the middle of a step, at the token cap."""
        return self.step is not None and not self.step.complete

    def state_after(self, text: TokenText) -> Any:
        """A copy of the program's state after this prefix, and a text after it."""
        state = self.state.fork(1)[0]
        state += text
        return state

    def release(self) -> None:
        """Removes references to its parent and inquiries, so that no reference cycle keeps them in
        memory.
        """
        self.parent = self.asked = None

    def follow(self, last: Node) -> None:
        """Makes this root of a new tree the prefix that ``last`` was in another one."""
        self.position = last.position
        self.step = last.step
        self.number = last.number

    def subtree(self) -> Iterator[Node]:
        """This node and everything under it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node.correction is not None:
                waiting.append(node.correction)
            waiting += reversed(node.children)


@dataclass
class StepTree:
    """The tree of one answer, and the rules that decide it (paper section 3.1, Algorithm 1 and
    multi-branch).

    Args:
        depth: maximum number of drafted steps ahead of the root.
        budget: tokens that the answer may have.
        half_sentence_guard: whether steps after a cut prefix are rejected, so that none is drafted
            there.

    Attributes:
        concluded: whether the thinking is over, and what follows is an answer of its own.
    """

    depth: int
    budget: int
    half_sentence_guard: bool = True
    root: Node = field(default_factory=lambda: Node(None, 0))
    concluded: bool = field(default=False, init=False)
    _live: list[Node] | None = field(default=None, init=False, repr=False)

    def ahead(self, node: Node) -> int:
        """How many steps the node is ahead of the root."""
        return node.position - self.root.position

    def between(self, node: Node) -> Iterator[Node]:
        """The prefixes from the node's parent back to the root."""
        while node is not self.root and node.parent is not None:
            node = node.parent
            yield node

    def room(self, node: Node) -> int:
        """Tokens left in the budget after the node."""
        return self.budget - node.tokens_used

    def is_last(self, node: Node) -> bool:
        """Whether the answer is complete at this node: a final step, or no tokens left in the
        budget.
        """
        return (node.step is not None and (node.step.final or not node.step.ids)) or self.room(
            node
        ) <= 0

    @property
    def complete(self) -> bool:
        """Whether the answer has its end."""
        return self.is_last(self.root)

    @property
    def over(self) -> bool:
        """Whether nothing more is added to this tree."""
        return self.complete or self.concluded

    def live(self) -> list[Node]:
        """Nodes whose step is known and that are not dropped, the root first."""
        if self._live is None:
            self._live = [
                n
                for n in self.root.subtree()
                if not n.dropped and (n.step is not None or n is self.root)
            ]
        return self._live

    def to_read(self) -> list[list[Node]]:
        """The prefixes after which the draft has written tokens that the target has not read, by
        paths on which each is a drafted step after the one before. What was drafted after a prefix
        where the target reads now waits: a read finds nothing of another one in the cache before
        that has ended, so that it would read its tokens again.
        """
        paths: list[list[Node]] = []
        for node in sorted(self.live(), key=self.ahead):
            version = node.version
            if version.guess is None or version.branch is not None or node.chosen is not None:
                continue
            if any(earlier.version.is_read_now for earlier in self.between(node)):
                continue
            joined = [
                path
                for path in paths
                if path[-1] is node.parent and path[-1].version.leads_to(node.step)
            ]
            if joined and not version.known:  # else its guess does not follow theirs
                joined[0].append(node)
            else:
                paths.append([node])
        return paths

    def _waits(self, node: Node) -> bool:
        """Whether a version of the next step is being drafted that is to be read first."""
        version = node.version
        return version.read_first and not version.was_read and node.children[0].verdict is None

    def to_expand(self, furthest: int) -> list[Node]:
        """Nodes at most ``furthest`` steps ahead after which the target's next step, or the rest of
        it, is to be written, nearest first.
        """
        found = [
            n
            for n in self.live()
            if n.version.can_be_written
            and self.ahead(n) <= furthest
            and not self.is_last(n)
            and n.chosen is None
            and not self._waits(n)
        ]
        return sorted(found, key=self.ahead)

    def to_propose(self) -> list[Node]:
        """Nodes less than ``depth`` ahead for which no next step has been drafted,
        nearest first.
        """
        found = [
            n
            for n in self.live()
            if not n.proposed
            and n.version.step is None
            and self.ahead(n) < self.depth
            and not self.is_last(n)
            and not (n.cut and self.half_sentence_guard)
        ]
        return sorted(found, key=self.ahead)

    def add_children(self, node: Node, width: int) -> list[Node]:
        """Adds ``width`` children whose steps are to be drafted."""
        node.proposed = True
        node.children = [
            Node(
                node,
                node.position + 1,
                source="draft",
                alternative=i,
                lineage=lineage(node.lineage, i),
            )
            for i in range(width)
        ]
        return node.children

    def correct(self, node: Node) -> Node:
        """The node after ``node`` whose step is the target's version; made if there is none."""
        version = node.version
        assert version.step is not None
        if node.correction is None:
            made = Node(node, node.position + 1, version.step, "target", state=version.state)
            made.tokens_used = node.tokens_used + len(version.step.ids)
            made.lineage = lineage(node.lineage, _TARGETS)
            node.correction = made
            self._live = None
        return node.correction

    def enter_draft(self, node: Node, step: Step, tokens: int | None = None) -> None:
        """Enters the draft step that leads to ``node``; ``tokens``: its length in the target's
        tokens, if different.
        """
        assert node.parent is not None
        node.step = step
        self._live = None
        node.tokens_used = node.parent.tokens_used + (len(step.ids) if tokens is None else tokens)

    def drop(self, node: Node) -> list[Node]:
        """Removes a node and all nodes after it; returns them, ``node`` first."""
        below = list(node.subtree())
        self._live = None
        for one in below:
            one.dropped = True
        return below

    def pair(self, child: Node) -> Pair | None:
        """The two versions of the step of ``child``, if both are known and the verifier has not
        been asked.
        """
        parent = child.parent
        if (
            parent is None
            or parent.version.step is None
            or child.step is None
            or child.verdict
            or child.asked
        ):
            return None
        return Pair(parent.version.step, child.step, not (parent.cut and self.half_sentence_guard))

    def to_decide(self) -> list[Node]:
        """Nodes that have the target's version and no chosen next node, the root first."""
        return [n for n in self.live() if n.version.step is not None and n.chosen is None]

    def decide(self, node: Node) -> Node | None:
        """Chooses the next node if it can be decided; returns it if this call chose it.

        The target's version must be there. An accepted draft is chosen as soon as there is one; the
        target's version if all drafts are rejected, or there is none.
        """
        if node.dropped or node.chosen is not None or node.version.step is None:
            return None
        accepted = [c for c in node.children if c.verdict and c.verdict.accepted]
        if accepted:
            node.chosen = accepted[0]
        elif all(c.verdict for c in node.children):
            node.chosen = self.correct(node)
        return node.chosen

    def advance(self) -> Node | None:
        """Moves the root one decided step on and returns it, or None when the next step is not
        decided.
        """
        if self.root.chosen is None:
            return None
        self.root = self.root.chosen
        self._live = None
        return self.root


def lineage(before: int, alternative: int = 0) -> int:
    """The lineage of version ``alternative`` of the step after a node of lineage ``before``."""
    return (before * (_TARGETS + 1) + alternative) % _LINEAGES
