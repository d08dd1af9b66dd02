"""What an answer took, for its client: tokens as OpenAI counts them, the acceptance of speculation
in the form that vLLM gives it, and the same of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lr_sglang.steps.trace import Trace


def usage_of(prompt: int, written: int, thought: int, cached: int | None) -> dict[str, Any]:
    """A usage in OpenAI's form, with SGLang's ``reasoning_tokens``; it counts what was delivered.

    Args:
        prompt, written, thought: tokens of the prompt, of the answer, and of its reasoning.
        cached: tokens of the prompt that the target had in its cache; None where it does not say.
    """
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
        "reasoning_tokens": thought,
    }


def cached_of(trace: Trace) -> int | None:
    """Tokens of the question's prompt that the target had in its cache; None where that is not
    known (yet).
    """
    first = next((branch for branch in trace.branches if branch.role == "target"), None)
    cached = None if first is None else first.cached_tokens
    return None if cached is None else min(cached, trace.prompt_tokens)


def costs_of(trace: Trace, delivered: int) -> dict[str, int]:
    """Tokens of all branches: ``drafted`` by the draft, ``wasted`` by both writers, ``cached`` of
    prompts; and of the answer ``judged``, which a verifier accepted in place of the target's
    ``own``.

    Takes a while for a long answer.

    Args:
        delivered: tokens that the client got.
    """
    counts = trace.tokens()
    cached = sum(counts[role]["cached"] for role in ("target", "draft", "judge"))
    wasted = max(0, counts["generated"] - delivered)
    return {
        "drafted": counts["draft"]["generated"],
        "wasted": wasted,
        "cached": cached,
        "judged": counts["judged"],
        "own": counts["own"],
    }


def metrics_of(trace: Trace) -> dict[str, Any]:
    """The acceptance of speculation in one answer: of tokens, and of steps. Each is None where
    nothing was speculated.
    """
    return {"speculative_decoding": of_tokens(trace), "lookahead": of_steps(trace)}


def of_tokens(trace: Trace) -> dict[str, Any] | None:
    """vLLM's ``speculative_decoding`` (its pull request 48915) for all requests to the target: what
    its token layer has verified, and the pieces of the draft that it has read.
    """
    accepted = Counter[int]()
    drafted = longest = 0
    is_complete = True
    for branch in trace.of("target"):
        verified, proposed, _ = branch.sd
        if verified:
            is_complete = is_complete and sum(branch.sd_accepted) == verified
            accepted.update(dict(enumerate(branch.sd_accepted)))
            drafted += proposed
            longest = max(longest, -(-proposed // verified))
    for (tokens, same), times in trace.reads.items():
        accepted[same] += times
        drafted += tokens * times
        longest = max(longest, tokens)
    steps = sum(accepted.values())
    if not steps or not is_complete:  # an older server does not say how many each step accepted
        return None
    kept = sum(tokens * times for tokens, times in accepted.items())
    return {
        **_shares(accepted, kept, drafted, longest),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": kept,
        "num_draft_tokens": drafted,
        "num_spec_tokens": max(longest, *accepted),
    }


def of_steps(trace: Trace) -> dict[str, Any] | None:
    """The same of steps: a cycle is what follows a step of the target's, up to its next one."""
    accepted = Counter[int]()
    run = 0
    for step in trace.before_conclusion:
        if step.source == "draft":
            run += 1
        elif run or step.judged:
            accepted[run] += 1
            run = 0
    if run:
        accepted[run] += 1
    if not accepted:
        return None
    return {
        **_shares(accepted, trace.accepted, trace.judged, max(accepted)),
        "num_cycles": sum(accepted.values()),
        "num_accepted_draft_steps": trace.accepted,
        "num_draft_steps": trace.judged,
        "num_steps": len(trace.steps),
    }


def _shares(accepted: Mapping[int, int], kept: int, drafted: int, longest: int) -> dict[str, Any]:
    """The means, and how often how many were accepted.

    Args:
        accepted: number of rounds by how many were accepted in them.
        longest: the most that are drafted in a round.
    """
    return {
        "mean_acceptance_length": 1 + kept / sum(accepted.values()),
        "draft_acceptance_rate": kept / drafted if drafted else 0.0,
        "acceptance_histogram": [
            accepted.get(number, 0) for number in range(max(longest, *accepted) + 1)
        ],
    }
