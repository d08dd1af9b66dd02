"""The trace of one answer: its steps, every branch, and the figures computed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.steps.branch import Branch
from lr_sglang.steps.step import Ending, Verdict


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
