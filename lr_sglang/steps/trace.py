"""What is told of an answer: its trace, with its steps, every branch and the figures computed from
them; and its events while it is made, for a page, a log or a notebook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lr_sglang.steps.branch import Branch, Outcome
from lr_sglang.steps.step import Ending, Step, Verdict
from lr_sglang.steps.tree import Node

Kind = Literal[
    "begun",
    "done",
    "cancelled",
    "drafted",
    "written",
    "prepared",
    "verified",
    "accepted",
    "corrected",
    "bonus",
    "dropped",
    "ended",
]


@dataclass(frozen=True)
class StepRecord:
    """One step of the answer.

    Attributes:
        source: whose text it is, ``draft`` or ``target``.
        outcome: ``accepted``, ``corrected`` or ``bonus``; of a program's own generation
            ``written``.
        target_text, draft_texts: the versions; None for one that was not written.
        verdicts: one per drafted version; ``confidences``: the draft's, in the same order, only
            with a gate.
        seconds: since the question was asked.
        after_thinking: whether it is the target's own because it follows a judged thinking.
    """

    position: int
    text: str
    tokens: int
    source: str
    outcome: str
    ending: str
    seconds: float
    target_text: str | None = None
    draft_texts: tuple[str | None, ...] = ()
    verdicts: tuple[Verdict | None, ...] = ()
    confidences: tuple[float | None, ...] = ()
    after_thinking: bool = False

    @property
    def judged(self) -> bool:
        """Whether a drafted version was compared or came too late; not if the draft failed."""
        return any(verdict is not None and not verdict.failed for verdict in self.verdicts)

    def spoken(self, ids: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
        """The step's tokens without the end of sequence, which may be an ordinary token."""
        return ids[:-1] if self.ending == Ending.END and ids and ids[-1] in ends else ids


@dataclass
class Trace:
    """How one answer was made. Times are seconds since the question was asked.

    Attributes:
        text: the whole answer; ``ids`` are its tokens, the end of sequence included, as the target
            reads them.
        finish: ``stop`` (the model ended it) or ``length`` (a token budget did).
        seconds: when the last step was kept.
        cycles: steps that the target wrote itself, where steps were drafted: each ends a cycle.
        drained: when the last branch had ended on its runtime.
        seeded: whether the same seed gives the same answer: every runtime honours seeds.
        shared_draws: whether draft and target drew steps with the same random numbers; if they did
            not, ``own_draws`` says why.
        lossless: ``text`` where the answer is the one that plain decoding writes with this seed,
            ``distribution`` where it is another draw of the target's distribution; empty where
            steps of the draft were kept that the target did not write.
        conclusion: what is exact after the thinking, where the thinking was judged: ``step`` and
            ``tokens`` are the numbers of those before it, ``seed`` is its seed, and ``text`` is as
            ``lossless``; empty where there is none. The steps say of themselves which they are
            (``StepRecord.after_thinking``), also those of a program's generations.
        read_tokens, agreed_tokens: drafted tokens that the target has read in place of writing
            them, and those of them that it would have written; ``reads``: of each read, how many
            tokens it had, and how many of them the target would have written.
        late_tokens: drafted tokens that came when the target had written there itself.
        not_fed: why the target was not fed though its server has the token layer ``fed``; empty
            where it was, or where nothing could be.
        alone: why the target wrote a lossless answer, or what follows the thinking, without a
            draft; empty if it did not.
        failures: number of failures by role, of draft and judge; the answer went on without them.
        causes: why the first of them failed, by role.
        doubts: of runtimes, by role and name: little reuse, aborts that are not taken, seeds that
            are ignored (docs/metrics.md).
        program: with ``--program``: the program's name and the figures of its generations
            (docs/programs.md).
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    seconds: float = 0.0
    drained: float = 0.0
    cycles: int = 0
    seeded: bool = False
    shared_draws: bool = False
    own_draws: str = ""
    lossless: str = ""
    conclusion: dict[str, Any] = field(default_factory=dict)
    read_tokens: int = 0
    agreed_tokens: int = 0
    late_tokens: int = 0
    not_fed: str = ""
    alone: str = ""
    reads: Counter[tuple[int, int]] = field(default_factory=Counter)
    steps: list[StepRecord] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    causes: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, Mapping[Any, str]] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)

    def failed(self, role: str, why: str) -> None:
        """Counts a failure that the answer survives."""
        self.failures[role] += 1
        self.causes.setdefault(role, why)

    def add(self, step: StepRecord, ids: tuple[int, ...]) -> None:
        """Adds a step and its tokens."""
        self.steps.append(step)
        self.text += step.text
        self.ids += ids
        self.seconds = step.seconds

    def add_counts(self, traces: Sequence[Trace]) -> None:
        """Sets what is counted, and why requests failed, to what these traces have together; the
        first cause and doubt of a role stand.
        """
        for name in ("cycles", "read_tokens", "agreed_tokens", "late_tokens"):
            setattr(self, name, sum(getattr(trace, name) for trace in traces))
        self.reads = sum((trace.reads for trace in traces), Counter())
        self.failures = sum((trace.failures for trace in traces), Counter())
        for trace in reversed(traces):
            self.causes |= trace.causes
            self.doubts |= trace.doubts

    def of(self, role: str) -> list[Branch]:
        """The branches of one role."""
        return [b for b in self.branches if b.role == role]

    @property
    def judged(self) -> int:
        """Number of steps of which a drafted version was compared or came too late; not those whose
        draft failed.
        """
        return sum(step.judged for step in self.before_conclusion)

    @property
    def accepted(self) -> int:
        """Number of steps that the draft wrote."""
        return sum(s.source == "draft" for s in self.before_conclusion)

    @property
    def before_conclusion(self) -> list[StepRecord]:
        """The steps before an exact conclusion: all where there is none."""
        return [step for step in self.steps if not step.after_thinking]

    @property
    def judged_tokens(self) -> int:
        """Tokens of steps that a verifier accepted in place of the target's own."""
        if self.lossless:
            return 0
        return sum(s.tokens for s in self.before_conclusion if s.source == "draft")

    @property
    def alpha(self) -> float | None:
        """Step acceptance rate along the answer."""
        return self.accepted / self.judged if self.judged else None

    def tokens(self) -> dict[str, Any]:
        """Token counts: ``used`` in the answer, ``generated`` and ``wasted`` by target and draft
        (generated = used + wasted); ``judged``, those that a verifier accepted in place of the
        target's ``own``; for each role the passes that its requests took (``prefills``:
        of their prompts; ``passes``: that decoded or verified, which requests may share), prompt,
        cached, shareable and reused tokens, ``reuse``, cached / prompt (``hit_rate``), and the
        counts of its token layer (``acceptance``).
        """
        writers = [b for b in self.branches if b.role != "judge"]
        generated = sum(b.generated_tokens for b in writers)
        used = sum(s.tokens for s in self.steps)
        counts: dict[str, Any] = {"used": used, "generated": generated, "wasted": generated - used}
        counts |= {"judged": self.judged_tokens, "own": used - self.judged_tokens}
        for role in ("target", "draft", "judge"):
            counts[role] = self._prefix(role)
        return counts

    def _prefix(self, role: str) -> dict[str, Any]:
        known = [b for b in self.of(role) if b.cached_tokens is not None]
        prompt = sum(b.prompt_tokens for b in known)
        cached = sum(b.cached_tokens or 0 for b in known)
        shared = sum(b.shared_tokens or 0 for b in known)
        reused = sum(b.reused_tokens for b in known)
        return {
            "calls": len(self.of(role)),
            "prefills": sum(b.prompt_tokens > 0 for b in self.of(role)),
            "passes": sum(b.passes for b in self.of(role)),
            "generated": sum(b.generated_tokens for b in self.of(role)),
            "prompt": prompt,
            "cached": cached,
            "shareable": shared,
            "reused": reused,
            "reuse": reused / shared if shared else None,
            "hit_rate": cached / prompt if prompt else None,
            "sd": acceptance(b.sd for b in self.of(role)),
        }

    def outcomes(self) -> dict[str, Counter[str]]:
        """The number of branches by role and outcome."""
        return {
            role: Counter(str(b.outcome) for b in self.of(role) if b.outcome is not None)
            for role in ("target", "draft", "judge")
        }


def acceptance(counts: Iterable[Sequence[int]]) -> dict[str, Any]:
    """The figures of SGLang's speculative decoding, for JSON.

    Args:
        counts: of each generation, the forward passes of the large model that checked drafted
            tokens, the tokens that were drafted for these passes, and those that were accepted.

    Returns:
        The sums, the acceptance length (tokens per verification, including the one that the large
        model adds) and the acceptance rate (the share of the drafted tokens).
    """
    verified, drafted, accepted = map(sum, zip((0, 0, 0), *counts, strict=True))
    return {
        "verified": verified,
        "drafted": drafted,
        "accepted": accepted,
        "length": 1 + accepted / verified if verified else None,
        "rate": accepted / drafted if drafted else None,
    }


@dataclass(frozen=True)
class Event:
    """One event of one answer.

    Nodes (prefixes of the answer) have numbers in the order in which they appear; the prompt is 0.

    Attributes:
        kind: ``begun``: a branch was sent to a runtime, one event for each. ``done``: it has its
            result. ``cancelled``: it was given up before. ``drafted``: the draft's version, the
            step of ``node``, has arrived. ``written``: the target's version of the step after
            ``prefix`` has arrived. ``prepared``: that version became ``node``, so that branches can
            follow it before it is kept. ``verified``: the verdict on ``node`` has arrived.
            ``accepted``, ``corrected`` or ``bonus``: ``node`` is now a step of the answer.
            ``dropped``: ``node`` was dropped, or the target's branch after ``prefix`` if ``node``
            is None. ``ended``: the answer is complete.
        seconds: since the question was asked.
        role: the role whose branch or text it is; empty for ``ended``.
        position: index of the step in the answer, from 0.
        prefix: the node that the step follows.
        node: the node that the step leads to; None while the target's version has none.
        text: the step, if the event has one; ``tokens`` is its length.
        branch: of ``done`` and ``cancelled``: which, by the number of its ``begun`` among all, from
            1.
        outcome: of a dropped branch ``rejected`` or ``cancelled``; of the answer ``stop`` or
            ``length``.
    """

    kind: Kind
    seconds: float
    role: str
    position: int
    prefix: int
    node: int | None = None
    text: str = ""
    tokens: int = 0
    verdict: Verdict | None = None
    branch: int | None = None
    outcome: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The event for JSON, without empty fields."""
        always = {
            "kind": self.kind,
            "seconds": self.seconds,
            "position": self.position,
            "prefix": self.prefix,
        }
        return always | {
            key: value for key, value in asdict(self).items() if value not in (None, "", 0)
        }


class EventEmitter:
    """Numbers the nodes of one answer and emits its events. Without a callback it does nothing.

    Args:
        on_event: called with every event, on the event loop; None emits nothing.
        now: returns seconds since the question was asked.
    """

    def __init__(self, on_event: Callable[[Event], None] | None, now: Callable[[], float]) -> None:
        self._on_event = on_event
        self._now = now
        self._numbers = 0
        self._begun = 0
        self._running: dict[int, Event] = {}  # by the branch's number, its first event

    def begun(self, role: str, prefix: Node, node: Node | None) -> int:
        """A branch was sent to a runtime; returns its number."""
        self._begun += 1
        event = self._emit("begun", role, prefix, node)
        if event is not None:
            self._running[self._begun] = event
        return self._begun

    def done(self, branch: int, cancelled: bool = False) -> None:
        """A branch has its result, or was given up before. Only the first of the two is told."""
        first = self._running.pop(branch, None)
        if first is not None and self._on_event is not None:
            kind: Kind = "cancelled" if cancelled else "done"
            self._on_event(replace(first, kind=kind, seconds=self._now(), branch=branch))

    def drafted(self, node: Node) -> None:
        """The draft's version of a step has arrived."""
        self._emit("drafted", "draft", node.parent, node, node.step)

    def written(self, prefix: Node) -> None:
        """The target's version of a step has arrived."""
        self._emit("written", "target", prefix, None, prefix.version.step)

    def verified(self, node: Node, verdict: Verdict) -> None:
        """The verdict on a drafted step has arrived."""
        self._emit("verified", "judge", node.parent, node, verdict=verdict)

    def kept(self, prefix: Node, node: Node, outcome: Outcome) -> None:
        """A step of the answer is decided."""
        kind: Kind = "accepted" if outcome is Outcome.ACCEPTED else "corrected"
        kind = "bonus" if outcome is Outcome.BONUS else kind
        self._emit(kind, node.source, prefix, node, node.step)

    def dropped(self, role: str, prefix: Node | None, node: Node | None, outcome: Outcome) -> None:
        """A drafted node, or the target's branch after a prefix, was dropped."""
        self._emit("dropped", role, prefix, node, outcome=outcome.value)

    def ended(self, node: Node, finish: str) -> None:
        """The answer is complete; branches that still run are given up."""
        self._emit("ended", "", node, None, outcome=finish)
        self._running.clear()
        self._on_event = None

    def _emit(
        self,
        kind: Kind,
        role: str,
        prefix: Node | None,
        node: Node | None,
        step: Step | None = None,
        **more: Any,
    ) -> Event | None:
        if self._on_event is not None and prefix is not None:
            if prefix.number is None and prefix.parent is not None:
                # the target's version, which branches may follow before it is kept
                self._emit("prepared", "target", prefix.parent, prefix, prefix.step)
            if step is not None:
                more |= {"text": step.text, "tokens": len(step.ids)}
            before = self._number(prefix)
            number = None if node is None else self._number(node)
            event = Event(kind, self._now(), role, prefix.position, before, number, **more)
            self._on_event(event)
            return event
        return None

    def _number(self, node: Node) -> int:
        if node.number is None:
            node.number = self._numbers
            self._numbers += 1
        return node.number
