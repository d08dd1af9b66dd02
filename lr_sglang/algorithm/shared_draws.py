"""Whether draft and target draw with the same random numbers, and a seed gives the same answer."""

from __future__ import annotations

from collections.abc import Mapping

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.reader import Reader
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.tree import Node

OTHER_PLACES = (
    "their servers count draws from the prompts' beginnings, and the prompts' lengths differ"
)


def note_draws(job: AnswerRequest, roles: Mapping[str, RuntimeBackend], reader: Reader) -> None:
    """Records whether the same seed gives the same answer, and what draft and target share."""
    trace, target, draft = job.trace, roles["target"], roles.get("draft")
    trace.seeded = all(backend.facts.follows_seed(job.parameters) for backend in roles.values())
    if job.exact:
        trace.lossless = exactness(job, target, reader)
    if job.verifier is not None and draft is not None:
        trace.own_draws = _why_own_draws(job, draft, target)
        trace.shared_draws = not trace.own_draws


def exactness(job: AnswerRequest, target: RuntimeBackend, reader: Reader) -> str:
    """What an exact answer is: the ``text`` of plain decoding with its seed, or a draw of its
    ``distribution``.
    """
    made_here = reader.own_numbers and reader.can_read()
    same = target.facts.follows_seed(job.parameters) and (job.sampling.greedy or not made_here)
    return "text" if same else "distribution"


def _why_own_draws(job: AnswerRequest, draft: RuntimeBackend, target: RuntimeBackend) -> str:
    """Why draft and target do not draw with the same numbers; empty if they do."""
    if job.sampling.greedy:
        return "temperature 0 draws nothing"
    if not job.lookahead.shared_draws:
        return "shared_draws is off"
    for one in (target, draft):
        if not one.facts.seeded:
            return f"{one.role}: {one.facts.seed_fault or 'it honours no seed'}"
        if relaxed := one.facts.relaxes(job.parameters):
            return f"{one.role}: it honours no seed with {', '.join(relaxed)}"
    if draft.tokenizer.vocabulary != target.tokenizer.vocabulary:
        return "draft and target have different vocabularies"
    if draft.facts.places != target.facts.places:
        return "one server counts draws from the answer, the other from the prompt"
    return ""


def compare_prompts(job: AnswerRequest, target: RuntimeBackend, draft: Branch, node: Node) -> None:
    """Records that nothing is shared where draws are counted from the prompt's beginning and the
    prompt of this draft, after ``node``, is not as long as the target's.
    """
    trace = job.trace
    if not trace.shared_draws or target.facts.places != "prompt":
        return
    if draft.prompt_tokens - node.tokens_used != trace.prompt_tokens:
        trace.shared_draws = False
        trace.own_draws = OTHER_PLACES
