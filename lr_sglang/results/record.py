"""The record of one sample: everything that is needed to judge it and to repeat it; and what is
kept of it in memory.

A run of the paper's size has tens of thousands of records, of up to a megabyte each, and they stay
on the disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.errors import LookaheadError, RecordError
from lr_sglang.json_text import dumped
from lr_sglang.results import accounting
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.step import NOT_COMPARED
from lr_sglang.tasks import Question
from lr_sglang.tasks.boxed import boxed, correct
from lr_sglang.theory.measured import AnswerFigures

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.algorithm.answer_request import AnswerRequest

RECORD_SCHEMA = 1  # raised when a field changes its meaning
BRANCH_WAITS = ("queued", "prefill")  # of a branch, in seconds; only where the runtime reports them

Record = MutableMapping[str, Any]
Key = tuple[str, int, str]


def key(record: Record) -> Key:
    """The key of a sample in its run: question, sample and mode."""
    return record["question_id"], record["sample"], record["mode"]


def digest(question: str, gold: str | None, extra: Any) -> bytes:
    """Of all that a question is: its text, its right answer, and what else its source says."""
    plain = json.loads(dumped([question, gold, extra]))
    return hashlib.blake2b(dumped(plain, sort_keys=True), digest_size=16).digest()


def make_record(
    question: Question,
    mode: str,
    request: AnswerRequest,
    config: dict[str, Any],
    versions: dict[str, str],
    error: LookaheadError | None = None,
) -> Record:
    """The record of an answer. Times are seconds since the question was asked.

    Args:
        error: that ended the answer; the record then has the part written before.
    """
    trace = request.trace
    failure = None
    answer = boxed(trace.text) if error is None else None
    right = correct(answer, question.answer)
    if error is not None:
        names = ("role", "message", "hint", "retryable")
        failure = {"kind": type(error).__name__, **{name: getattr(error, name) for name in names}}
    check = request.check
    return {
        "schema": RECORD_SCHEMA,
        "question_id": question.id,
        "sample": request.sample,
        "mode": mode,
        "question": question.question,
        "gold": question.answer,
        "extra": question.extra,
        "seed": request.sampling.seed,
        "seeded": trace.seeded,
        "shared_draws": trace.shared_draws,
        "own_draws": trace.own_draws,
        "lossless": trace.lossless,
        **({"conclusion": trace.conclusion} if trace.conclusion else {}),
        **({"false_accepts": check.known.to_dict()} if check and check.known else {}),
        "text": trace.text,
        "answer": answer,
        "correct": right,
        "error": failure,
        "finish": trace.finish,
        "seconds": round(trace.seconds, 6),
        "drained": round(trace.drained, 6),
        "prompt_tokens": trace.prompt_tokens,
        "cycles": trace.cycles,
        "read_tokens": trace.read_tokens,
        "agreed_tokens": trace.agreed_tokens,
        "reads": [[*read, times] for read, times in sorted(trace.reads.items())],
        "late_tokens": trace.late_tokens,
        "not_fed": trace.not_fed,
        "alone": trace.alone,
        "judged": trace.judged,
        "accepted": trace.accepted,
        "alpha": trace.alpha,
        "tokens": trace.tokens(),
        "outcomes": {role: dict(counts) for role, counts in trace.outcomes().items()},
        "failures": {role: count for role, count in trace.failures.items() if count},
        **({"causes": dict(trace.causes)} if trace.causes else {}),
        "ids_digest": hashlib.blake2b(repr(trace.ids).encode(), digest_size=16).hexdigest(),
        "steps": [
            {**dataclasses.asdict(step), "seconds": round(step.seconds, 6)} for step in trace.steps
        ],
        "branches": [of_branch(branch) for branch in trace.branches],
        **({"doubts": trace.doubts} if trace.doubts else {}),
        **({"program": trace.program} if trace.program else {}),
        "config": config,
        "versions": versions,
    }


def of_branch(branch: Branch) -> Record:
    """A branch, as the record has it."""
    ended = branch.ended
    outcome = branch.outcome
    return {
        "role": branch.role,
        "purpose": branch.purpose,
        "position": branch.position,
        "alternative": branch.alternative,
        "seed": branch.seed,
        "started": round(branch.started, 6),
        "ended": None if ended is None else round(ended, 6),
        "prompt": branch.prompt_tokens,
        "cached": branch.cached_tokens,
        "shareable": branch.shared_tokens,
        "generated": branch.generated_tokens,
        "sd": list(branch.sd) if branch.sd[0] else None,
        "outcome": None if outcome is None else str(outcome),
        "error": branch.error,
        **{
            name: round(known, 6)
            for name in BRANCH_WAITS
            if (known := getattr(branch, name)) is not None
        },
    }


CAME_WITHIN = 0.005  # seconds; an answer whose steps are all kept within them came at once
_LONG = ("extra", "text", "reads", "steps", "branches", "outcomes", "program", "config", "versions")
# ``Verdict.by`` of steps that no verifier was asked about.
_UNASKED = (*NOT_COMPARED, "ending", "special")


def doubts_of(records: Iterable[Record | Brief]) -> list[str]:
    """What the records say of runtimes that reuse little, take no aborts or ignore seeds."""
    each = (one.get("doubts", {}).items() for one in records)
    said = (f"{role}: {text}" for found in each for role, of in found for text in of.values())
    return list(dict.fromkeys(said))


class Brief:
    """The short fields of a record, read as from the record (``brief["seconds"]``).

    Attributes:
        steps: number of steps.
        answer: what the formulas need of it; None if the record lacks it.
        asked: of what was asked (``digest``).
        path, start: the file, and the byte at which the record's line begins.
    """

    __slots__ = ("_fields", "answer", "asked", "path", "start", "steps")

    def __init__(self, record: Record, path: Path | None = None, start: int = 0) -> None:
        self._fields: dict[str, Any] = _shared(
            {name: value for name, value in record.items() if name not in _LONG}
        )
        self.steps = len(record.get("steps", ()))
        self.asked = digest(record["question"], record.get("gold"), record.get("extra"))
        try:
            self.answer: AnswerFigures | None = AnswerFigures.of(record)
        except (KeyError, TypeError):
            self.answer = None
        self.path = path
        self.start = start

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str, default: Any = None) -> Any:
        """A short field, or the default."""
        return self._fields.get(name, default)

    def whole(self) -> Record:
        """The record, read from the disk.

        Raises:
            RecordError: it is not there any more.
        """
        try:
            with (self.path or Path()).open("rb") as file:
                file.seek(self.start)
                found: Record = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{self.path}: record of {self['question_id']} is not where it was",
                hint="the run was at work; try again",
            ) from error
        return found


def _shared(fields: dict[str, Any]) -> dict[str, Any]:
    """A copy whose names, and whose question, are objects that all records share."""
    found = {
        sys.intern(name): _shared(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }
    if isinstance(question := found.get("question"), str):
        found["question"] = sys.intern(question)
    return found


def grading_failed(records: Iterable[Brief]) -> list[Brief]:
    """Records without a verdict because grading itself failed."""
    return [r for r in records if (r.get("grade") or {}).get("failed")]


class ReportRow(Brief):
    """What a report needs of a record.

    Attributes:
        late: steps whose draft came too late.
        drafted: steps that the draft has written.
        decisions: what was asked to decide about steps: verdicts, and a program's requests for at
            most one token.
        verdicts: summed seconds and number of verdicts that asked a verifier.
        first: seconds until the first text of the answer was there: its first step, or, where the
            target alone has written, its first token; None if the runtime does not report that.
        at_once: whether the first text came together with all of the answer.
        parts: seconds of its critical path by part.
        timed: whether it has branches.
    """

    __slots__ = (
        "at_once",
        "decisions",
        "drafted",
        "first",
        "late",
        "parts",
        "timed",
        "verdicts",
    )

    def __init__(self, record: Record, path: Path | None = None, start: int = 0) -> None:
        super().__init__(record, path, start)
        self.first = _first(record)
        self.at_once = self.first is not None and record["seconds"] - self.first < CAME_WITHIN
        said = [v for step in record["steps"] for v in step["verdicts"] if v is not None]
        self.late = sum(
            any(v is not None and v["by"] == "late" for v in step["verdicts"])
            for step in record["steps"]
        )
        asked = [
            v["seconds"]
            for v in said
            if not v["failed"] and v["by"] not in _UNASKED and v["seconds"] > 0
        ]
        self.verdicts = (sum(asked), len(asked))
        self.drafted = sum(step["source"] == "draft" for step in record["steps"])
        made = record.get("program", {})
        aside = [one for one in made.get("generations", ()) if one["generated"] <= 1]
        self.decisions = len(asked) + sum(not one["in_answer"] for one in aside)
        self.decisions += made.get("answered", {}).get("select", 0)
        self.timed = bool(record["branches"])
        self.parts = accounting.parts(record) if record["error"] is None else {}


def of_target_alone(record: Record, position: int) -> bool:
    """Whether the target has written a step of which no draft was begun."""
    step = record["steps"][position]
    own = step["source"] == "target" and not step.get("draft_texts")
    return own and not any(
        one["role"] == "draft" and one["position"] == position for one in record["branches"]
    )


def _first(record: Record) -> float | None:
    steps = record["steps"]
    if not steps or "program" in record:
        return None
    together = [step for step in steps if step["seconds"] - steps[0]["seconds"] < CAME_WITHIN]
    burst = len(together) > 1 or len(steps) == 1  # several steps of one request
    if not (burst and of_target_alone(record, 0)):
        return float(steps[0]["seconds"])
    wrote = [one for one in record["branches"] if one["role"] == "target"]
    first = min(wrote, key=lambda one: float(one["started"]), default=None)
    if first is None or not first.keys() >= set(BRANCH_WAITS):
        return None
    return float(sum(first[name] for name in ("started", *BRANCH_WAITS)))


def acceptance_figure(record: Record | Brief, *, exact: bool) -> tuple[str, float | None]:
    """The figure that says how much of the draft an answer kept, and its name: alpha; or, where an
    exact answer has read the draft, the agreement of its tokens.
    """
    if exact and (read := record.get("read_tokens")):
        return "agreement", record["agreed_tokens"] / read
    return "alpha", record.get("alpha")


def is_exact(record: Record) -> bool:
    """Whether only the target's own tokens are accepted."""
    look = (record.get("config") or {}).get("lookahead") or {}
    return record["mode"] == "lossless" or look.get("verifier") == "exact"
