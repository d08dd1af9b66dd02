"""The record of one sample: everything that is needed to judge it, and to make it again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from lr_sglang.errors import LookaheadError
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.steps.tree import Branch
from lr_sglang.tasks import Question
from lr_sglang.tasks.boxed import boxed, correct

if TYPE_CHECKING:  # it imports SGLang, which takes seconds; a results folder is looked at before that
    from lr_sglang.algorithm.answer_request import AnswerRequest

SCHEMA = 1  # raised when a field changes its meaning
WAITS = ("queued", "prefill")  # of a branch, in seconds; only where the runtime reports them

Record = MutableMapping[str, Any]
Key = tuple[str, int, str]


def key(record: Record) -> Key:
    """What tells the samples of a run apart: question, sample and mode."""
    return record["question_id"], record["sample"], record["mode"]


def make(question: Question, mode: str, job: AnswerRequest, config: dict[str, Any], versions: dict[str, str]) -> Record:
    """The record of an answer that was completed. Times are seconds since the question was asked."""
    trace = job.record
    answer = boxed(trace.text)
    return {
        **_head(question, mode, job),
        "text": trace.text,
        "answer": answer,
        "correct": correct(answer, question.answer),
        "error": None,
        **_trace(trace),
        "config": config,
        "versions": versions,
    }


def make_failed(
    question: Question,
    mode: str,
    job: AnswerRequest,
    error: LookaheadError,
    config: dict[str, Any],
    versions: dict[str, str],
) -> Record:
    """The record of a sample that ended in an error; it has what had been written until then."""
    failure = {
        "kind": type(error).__name__,
        "role": error.role,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
    }
    return {
        **_head(question, mode, job),
        "text": job.record.text,
        "answer": None,
        "correct": None if question.answer is None else False,
        "error": failure,
        **_trace(job.record),
        "config": config,
        "versions": versions,
    }


def _head(question: Question, mode: str, job: AnswerRequest) -> Record:
    return {
        "schema": SCHEMA,
        "question_id": question.id,
        "sample": job.sample,
        "mode": mode,
        "question": question.question,
        "gold": question.answer,
        "extra": question.extra,
        "seed": job.sampling.seed,
        "seeded": job.record.seeded,
        **({"false_accepts": job.check.known.to_dict()} if job.check and job.check.known else {}),
    }


def _trace(trace: Trace) -> Record:
    return {
        "finish": trace.finish,
        "seconds": round(trace.seconds, 6),
        "drained": round(trace.drained, 6),
        "prompt_tokens": trace.prompt_tokens,
        "cycles": trace.cycles,
        "judged": trace.judged,
        "accepted": trace.accepted,
        "alpha": trace.alpha,
        "tokens": trace.tokens(),
        "outcomes": {role: dict(counts) for role, counts in trace.outcomes().items()},
        "failures": {role: count for role, count in trace.failures.items() if count},
        "ids_digest": hashlib.blake2b(repr(trace.ids).encode(), digest_size=16).hexdigest(),
        "steps": [_step(step) for step in trace.steps],
        "branches": [_branch(branch) for branch in trace.branches],
        **({"program": trace.program} if trace.program else {}),
    }


def _step(step: StepRecord) -> Record:
    table = dataclasses.asdict(step)
    return {**table, "seconds": round(step.seconds, 6)}


def _branch(branch: Branch) -> Record:
    return {
        "role": branch.role,
        "position": branch.position,
        "alternative": branch.alternative,
        "seed": branch.seed,
        "started": round(branch.started, 6),
        "ended": None if branch.ended is None else round(branch.ended, 6),
        "prompt": branch.prompt_tokens,
        "cached": branch.cached_tokens,
        "shareable": branch.shared_tokens,
        "generated": branch.generated_tokens,
        "sd": [branch.speculation.verified, branch.speculation.drafted, branch.speculation.accepted]
        if branch.speculation
        else None,
        "outcome": None if branch.outcome is None else str(branch.outcome),
        "error": branch.error,
        **{name: round(known, 6) for name in WAITS if (known := getattr(branch, name)) is not None},
    }
