"""The generations of one program, each with its own trace, and the common record of all of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.generation import Generation
from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.steps.step import split_ids
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.steps.tree import Branch, Outcome

_TAKEN = "\0"  # replaces each character of the answer whose generation is known


@dataclass(eq=False)
class GenerationTrace:
    """One generation.

    Attributes:
        began: its start, in seconds since the program's.
        role: the runtime; ``target`` for lookahead reasoning, where ``ahead`` is true.
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

    def note(self, result: Any, seconds: float, known: Tokenizer, is_step: bool) -> None:
        """Records the result of a generation of one request; its text is cut into steps, as in plain decoding.

        Args:
            result: a ``Generation``; anything else means that there is none.
            is_step: whether one step was requested, after which the model would have continued.
        """
        (branch,) = self.trace.branches
        branch.ended = self.trace.seconds = seconds
        if not isinstance(result, Generation):
            return
        result.record_in(branch)
        source, outcome = ("draft", "accepted") if self.role == "draft" else ("target", "written")
        for step in split_ids(result.ids, result.finish, known, result.ends):
            position, ending = len(self.trace.steps), step.ending.value
            kept = StepRecord(position, step.text, len(step.ids), source, outcome, ending, seconds)
            self.trace.add(kept, step.ids)
        self.trace.prompt_tokens = result.prompt_tokens
        cut = result.finish == "length" or (is_step and result.eos is None)
        self.trace.finish = "length" if cut else "stop"

    def moved(self, step: StepRecord, base: int) -> StepRecord:
        return dataclasses.replace(step, position=step.position + base, seconds=step.seconds + self.began)

    def branch(self, branch: Branch, base: int) -> Branch:
        """A copy of a branch, ``base`` steps further on in the answer."""
        ended = None if branch.ended is None else branch.ended + self.began
        moved = dataclasses.replace(
            branch, position=branch.position + base, started=branch.started + self.began, ended=ended
        )
        if moved.outcome is None:
            written = Outcome.ACCEPTED if self.role == "draft" else Outcome.BONUS
            moved.outcome = Outcome.CANCELLED if self.at is None else written
        return moved

    def figures(self) -> dict[str, Any]:
        """The figures for the record. Steps that are not in the answer stand under ``aside``, without texts."""
        trace = self.trace
        told = {
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
        }
        if self.ahead and self.at is None:
            told["aside"] = [_bare(self.moved(step, 0)) for step in trace.steps]
        return told


def _bare(step: StepRecord) -> dict[str, Any]:
    verdicts = [None if v is None else {"by": v.by, "seconds": round(v.seconds, 6)} for v in step.verdicts]
    seconds = round(step.seconds, 6)
    return {"source": step.source, "outcome": step.outcome, "seconds": seconds, "verdicts": verdicts}


def place(parts: Sequence[GenerationTrace], text: TokenText) -> None:
    """Finds the generations in an answer: by their pieces of text, or by their characters if the program changed it.

    The longest come first, because a short text, such as the digit of a rating, may stand in any solution.
    """
    whose = {id(piece): part for part in parts for piece in part.given.pieces}
    at, left = 0, ""
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


def ended(parts: Sequence[GenerationTrace], text: TokenText, ends: Collection[int]) -> tuple[int, ...]:
    """The end of sequence of the generation that an answer ends with; none where the program's own text follows it."""
    last = max((part for part in parts if part.at is not None), key=lambda part: part.at or 0, default=None)
    if last is None or text[last.at or 0 :].strip() != last.given.strip():
        return ()
    return tuple(token for token in last.trace.ids[-1:] if token in ends)


def write(record: Trace, parts: Sequence[GenerationTrace]) -> list[dict[str, Any]]:
    """The steps of the generations that are in the answer, in its order, and all branches, as they began.

    What a program has generated beside its answer counts as wasted.

    Returns:
        The generations in figures, as they began; each has the next ``branches`` of the record.
    """
    used = sorted((part for part in parts if part.at is not None), key=lambda part: part.at or 0)
    record.steps, first = [], dict[int, int]()
    for part in used:
        first[id(part)] = base = len(record.steps)
        record.steps += [part.moved(step, base) for step in part.trace.steps]
    beside = len(record.steps)
    record.branches = [
        part.branch(branch, first.get(id(part), beside)) for part in parts for branch in part.trace.branches
    ]
    traces = [part.trace for part in parts]
    record.finish = used[-1].trace.finish if used else "stop"
    record.prompt_tokens = next((t.prompt_tokens for t in traces if t.prompt_tokens), 0)
    record.cycles, record.seeded = sum(t.cycles for t in traces), all(t.seeded for t in traces)
    record.failures = sum((t.failures for t in traces), Counter())
    return [part.figures() | {"first": first.get(id(part), beside)} for part in parts]
