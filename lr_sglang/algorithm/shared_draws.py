"""Whether draft and target draw with the same random numbers, and a seed gives the same answer."""

from __future__ import annotations

from lr_sglang.algorithm.answer_context import AnswerContext
from lr_sglang.algorithm.reader import Reader
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.tree import Node

OTHER_PLACES = (
    "their servers count draws from the prompts' beginnings, and the prompts' lengths differ"
)


def note_draws(context: AnswerContext, reader: Reader) -> None:
    """Records whether the same seed gives the same answer, and what draft and target share."""
    request = context.request
    trace = context.trace
    draft = context.roles.get("draft")
    roles = context.roles.values()
    trace.seeded = all(backend.facts.follows_seed(request.parameters) for backend in roles)
    if request.exact:
        trace.lossless = exactness(context, reader)
    if request.verifier is not None and draft is not None:
        trace.own_draws = _why_own_draws(context, draft)
        trace.shared_draws = not trace.own_draws


def exactness(context: AnswerContext, reader: Reader) -> str:
    """What an exact answer is: the ``text`` of plain decoding with its seed, or a draw of its
    ``distribution``.
    """
    made_here = reader.own_numbers and reader.can_read()
    same = context.target.facts.follows_seed(context.request.parameters) and not made_here
    return "text" if same else "distribution"


def _why_own_draws(context: AnswerContext, draft: RuntimeBackend) -> str:
    """Why draft and target do not draw with the same numbers; empty if they do."""
    request = context.request
    target = context.target
    if request.sampling.greedy:
        return "temperature 0 draws nothing"
    if not request.lookahead.shared_draws:
        return "shared_draws is off"
    for one in (target, draft):
        if not one.facts.seeded:
            return f"{one.role}: {one.facts.seed_fault or 'it honours no seed'}"
        if relaxed := one.facts.relaxes(request.parameters):
            return f"{one.role}: it honours no seed with {', '.join(relaxed)}"
    if not context.shares_vocabulary("draft"):
        return "draft and target have different vocabularies"
    if draft.facts.places != target.facts.places:
        return "one server counts draws from the answer, the other from the prompt"
    return ""


def compare_prompts(context: AnswerContext, draft: Branch, node: Node) -> None:
    """Records that nothing is shared where draws are counted from the prompt's beginning and the
    prompt of this draft, after ``node``, is not as long as the target's.
    """
    trace = context.trace
    if not trace.shared_draws or context.target.facts.places != "prompt":
        return
    if draft.prompt_tokens - node.tokens_used != trace.prompt_tokens:
        trace.shared_draws = False
        trace.own_draws = OTHER_PLACES
