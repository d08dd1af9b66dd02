"""The generations of one program, each with its own trace, and the common record of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.errors import Cancelled
from lr_sglang.steps.branch import Branch, Generation, Outcome
from lr_sglang.steps.step import split_ids
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord, Trace

_LOSSLESS = ("", "distribution", "text")  # of ``Trace.lossless``, the weakest first
_TAKEN = "\0"  # replaces each character of the answer whose generation is known


@dataclass(eq=False)
class GenerationTrace:
    """One generation.

    Attributes:
        began: its start, in seconds since the program began.
        role: the role of the runtime; ``target`` for lookahead reasoning, for which ``ahead`` is
            True.
        trace: its own trace, with times since ``began``.
        given: the text that the program received.
        at: index of that text in the answer; None if it is not in the answer.
    """

    began: float
    role: str
    trace: Trace
    ahead: bool = True
    given: TokenText = field(default_factory=TokenText)
    at: int | None = None

    @property
    def lossless(self) -> str:
        """As ``Trace.lossless``: a generation by the target alone is its own draw."""
        if self.ahead:
            return self.trace.lossless
        if self.role != "target":
            return ""
        return "text" if self.trace.seeded else "distribution"

    def note(self, seconds: float, tokenizer: Tokenizer, is_step: bool) -> None:
        """Records the result of a generation by a single request, and splits its text into steps.

        Args:
            seconds: that it took.
            is_step: whether one step was requested, so that its end is not the end of the model's
                turn.
        """
        (branch,) = self.trace.branches
        self.trace.seconds = seconds
        branch.record(seconds)
        result = branch.result
        branch.release()
        if isinstance(result, Cancelled):
            result = result.generation
        if not isinstance(result, Generation):
            return
        source, outcome = ("draft", "accepted") if self.role == "draft" else ("target", "written")
        for step in split_ids(result.ids, result.finish, tokenizer, result.ends):
            position = len(self.trace.steps)
            ending = step.ending.value
            kept = StepRecord(position, step.text, len(step.ids), source, outcome, ending, seconds)
            self.trace.add(kept, step.ids)
        self.trace.prompt_tokens = result.prompt_tokens
        cut = result.finish == "length" or (is_step and result.eos is None)
        self.trace.finish = "length" if cut else "stop"

    def moved(self, step: StepRecord, base: int) -> StepRecord:
        return dataclasses.replace(
            step, position=step.position + base, seconds=step.seconds + self.began
        )

    def branch(self, branch: Branch, base: int) -> Branch:
        """A copy of a branch, with ``base`` added to its position and ``began`` to its times."""
        ended = None if branch.ended is None else branch.ended + self.began
        moved = dataclasses.replace(
            branch,
            position=branch.position + base,
            started=branch.started + self.began,
            ended=ended,
        )
        if moved.outcome is None:
            written = Outcome.ACCEPTED if self.role == "draft" else Outcome.BONUS
            moved.outcome = Outcome.CANCELLED if self.at is None else written
        return moved

    def figures(self) -> dict[str, Any]:
        """The figures for the record."""
        trace = self.trace
        return {
            "began": round(self.began, 6),
            "seconds": round(trace.seconds, 6),
            "role": self.role,
            "lookahead": self.ahead,
            "steps": len(trace.steps),
            "judged": trace.judged,
            "accepted": trace.accepted if self.ahead else 0,
            "generated": sum(b.generated_tokens for b in trace.branches if b.role != "judge"),
            "branches": len(trace.branches),
            "in_answer": self.at is not None,
            **({"conclusion": trace.conclusion} if trace.conclusion else {}),
        }


def find_generations(parts: Sequence[GenerationTrace], text: TokenText) -> None:
    """Finds the generations in an answer: by pieces of ``TokenText``, or by characters if the
    program changed the text.

    Longer texts are searched first, because a short one, such as the digit of a rating, may occur
    in any solution.
    """
    whose = {id(piece): part for part in parts for piece in part.given.pieces}
    at = 0
    left = ""
    for piece in text.pieces:
        part = whose.get(id(piece))
        if part is not None and part.at is None:
            part.at = at
        left += piece.text if part is None else _TAKEN * len(piece.text)
        at += len(piece.text)
    for part in sorted(parts, key=lambda part: -len(part.given)):
        wrote = part.given.strip()
        if part.at is None and wrote and (found := left.find(wrote)) >= 0:
            part.at = found
            left = left[:found] + _TAKEN * len(wrote) + left[found + len(wrote) :]


def end_of_sequence(
    parts: Sequence[GenerationTrace], text: TokenText, ends: Collection[int]
) -> tuple[int, ...]:
    """The end of sequence of the generation at the end of the answer; empty if other text follows
    it.
    """
    last = max(
        (part for part in parts if part.at is not None), key=lambda part: part.at or 0, default=None
    )
    if last is None or text[last.at or 0 :].strip() != last.given.strip():
        return ()
    return tuple(token for token in last.trace.ids[-1:] if token in ends)


def write_generations(record: Trace, parts: Sequence[GenerationTrace]) -> list[dict[str, Any]]:
    """Writes to the record the steps that are in the answer, in its order, and all branches, in the
    order of ``parts``.

    Tokens of generations that are not in the answer count as wasted.

    Returns:
        The figures of each generation; it has the next ``branches`` of the record's branches.
    """
    used = sorted((part for part in parts if part.at is not None), key=lambda part: part.at or 0)
    record.steps = []
    first = dict[int, int]()
    for part in used:
        first[id(part)] = base = len(record.steps)
        record.steps += [part.moved(step, base) for step in part.trace.steps]
    beside = len(record.steps)
    record.branches = [
        part.branch(branch, first.get(id(part), beside))
        for part in parts
        for branch in part.trace.branches
    ]
    traces = [part.trace for part in parts]
    record.finish = used[-1].trace.finish if used else "stop"
    record.prompt_tokens = next((t.prompt_tokens for t in traces if t.prompt_tokens), 0)
    record.seeded = all(t.seeded for t in traces)
    ahead = [part.trace for part in parts if part.ahead]
    record.shared_draws = bool(ahead) and all(t.shared_draws for t in ahead)
    for reason in ("own_draws", "not_fed", "alone"):
        setattr(record, reason, next(filter(None, (getattr(t, reason) for t in ahead)), ""))
    record.lossless = min((part.lossless for part in parts), key=_LOSSLESS.index, default="")
    record.add_counts(traces)
    return [part.figures() | {"first": first.get(id(part), beside)} for part in parts]
