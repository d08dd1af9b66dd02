"""The record of one sample: everything that is needed to judge it and to repeat it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from lr_sglang.engine.branch import Branch
from lr_sglang.errors import LookaheadError
from lr_sglang.tasks import Question
from lr_sglang.tasks.boxed import boxed, correct

if TYPE_CHECKING:  # it imports SGLang, which takes seconds
    from lr_sglang.algorithm.answer_request import AnswerRequest

SCHEMA = 1  # raised when a field changes its meaning
WAITS = ("queued", "prefill")  # of a branch, in seconds; only where the runtime reports them

Record = MutableMapping[str, Any]
Key = tuple[str, int, str]


def key(record: Record) -> Key:
    """The key of a sample in its run: question, sample and mode."""
    return record["question_id"], record["sample"], record["mode"]


def make(
    question: Question,
    mode: str,
    job: AnswerRequest,
    config: dict[str, Any],
    versions: dict[str, str],
    error: LookaheadError | None = None,
) -> Record:
    """The record of an answer. Times are seconds since the question was asked.

    Args:
        error: that ended the answer; the record then has the part written before.
    """
    trace, failure = job.record, None
    answer = boxed(trace.text) if error is None else None
    right = correct(answer, question.answer)
    if error is not None:
        names = ("role", "message", "hint", "retryable")
        failure = {"kind": type(error).__name__, **{name: getattr(error, name) for name in names}}
    return {
        **{"schema": SCHEMA, "question_id": question.id, "sample": job.sample, "mode": mode},
        **{"question": question.question, "gold": question.answer, "extra": question.extra},
        **{"seed": job.sampling.seed, "seeded": trace.seeded, "shared_draws": trace.shared_draws},
        **{"own_draws": trace.own_draws, "lossless": trace.lossless},
        **({"false_accepts": job.check.known.to_dict()} if job.check and job.check.known else {}),
        **{"text": trace.text, "answer": answer, "correct": right, "error": failure},
        **{
            "finish": trace.finish,
            "seconds": round(trace.seconds, 6),
            "drained": round(trace.drained, 6),
        },
        **{"prompt_tokens": trace.prompt_tokens, "cycles": trace.cycles},
        **{"read_tokens": trace.read_tokens, "agreed_tokens": trace.agreed_tokens},
        **{
            "judged": trace.judged,
            "accepted": trace.accepted,
            "alpha": trace.alpha,
            "tokens": trace.tokens(),
        },
        "outcomes": {role: dict(counts) for role, counts in trace.outcomes().items()},
        "failures": {role: count for role, count in trace.failures.items() if count},
        "ids_digest": hashlib.blake2b(repr(trace.ids).encode(), digest_size=16).hexdigest(),
        "steps": [
            {**dataclasses.asdict(step), "seconds": round(step.seconds, 6)} for step in trace.steps
        ],
        "branches": [of_branch(branch) for branch in trace.branches],
        **({"program": trace.program} if trace.program else {}),
        **{"config": config, "versions": versions},
    }


def of_branch(branch: Branch) -> Record:
    """A branch, as the record has it."""
    sd, ended, outcome = branch.speculation, branch.ended, branch.outcome
    return {
        **{name: getattr(branch, name) for name in ("role", "position", "alternative", "seed")},
        **{
            "started": round(branch.started, 6),
            "ended": None if ended is None else round(ended, 6),
        },
        **{
            "prompt": branch.prompt_tokens,
            "cached": branch.cached_tokens,
            "shareable": branch.shared_tokens,
        },
        **{
            "generated": branch.generated_tokens,
            "sd": [sd.verified, sd.drafted, sd.accepted] if sd else None,
        },
        **{"outcome": None if outcome is None else str(outcome), "error": branch.error},
        **{name: round(known, 6) for name in WAITS if (known := getattr(branch, name)) is not None},
    }
