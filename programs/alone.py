"""The target writes several steps in one generation: alone, or fed with what the draft writes ahead
of it; and the check of what it says of tokens that it reads.
"""

from __future__ import annotations

import asyncio

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.draft_line import DraftLine
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import fork
from lr_sglang.steps.step import DELIMITER, StepStop

STREAMED = 2048  # tokens of one streamed generation, whose events each have all tokens so far
CHECKED = 8  # tokens of the target's own that it reads first, so that its reading is checked


async def write_alone(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, while looking ahead does not pay."""
    root = answer.tree.root
    if answer.request.on_tokens is not None:
        tokens = min(tokens, STREAMED)
    target = fork(root.state, "target")
    answer.begin_branch("target", target, root)
    target += answer.gens.gen(root, "target", min(tokens, answer.tree.room(root)))
    await answer.keep_steps()  # adds each step to the answer when it is written


async def finish_step(answer: Answer) -> None:
    """The target writes the rest of a step whose first tokens are known: what was drawn stays."""
    root = answer.tree.root
    target = fork(root.state, "target")
    target += answer.text(root.version.known)
    answer.begin_branch("target", target, root)
    room = answer.tree.room(root) - root.version.place
    target += answer.gens.gen(root, "target", room, stop=StepStop(DELIMITER))
    await answer.keep_steps()


async def write_fed(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, and verifies in each pass what the draft
    has written ahead of it; its tokens are those that it would write alone.
    """
    root = answer.tree.root
    if not answer.roles["target"].facts.increments:
        tokens = min(tokens, STREAMED)
    target = fork(root.state, "target")
    branch = answer.begin_branch("target", target, root)
    line = DraftLine(answer.context, answer.reader, answer.gens, branch)
    target += answer.gens.gen(root, "target", tokens)
    ahead = asyncio.create_task(write_ahead(line))
    try:
        await answer.keep_steps(line)
    finally:
        line.close()
        await ahead


async def write_ahead(line: DraftLine) -> None:
    """The draft writes ahead of the target, and again from the target's own token where they
    part.
    """
    while await line.has_room():
        draft = fork(line.state(), "draft")
        line.begin_branch(draft)
        draft += line.gen()


async def check_reading(answer: Answer) -> None:
    """The target writes some tokens and reads them: what it reads must be what it wrote. An exact
    answer begins with them.
    """
    root = answer.tree.root
    target = fork(root.state, "target")
    written = answer.begin_branch("target", target, root, apart=True)
    tokens = min(CHECKED, answer.tree.room(root))
    target += answer.gens.gen(root, "target", tokens, return_logprob=True, top_logprobs_num=1)
    result = await answer.ended(written)
    if isinstance(result, LookaheadError):
        raise result
    root.version.guess = result.ids
    target = fork(root.state, "target")
    target += answer.text(result.ids)
    again = answer.begin_branch("target", target, root, apart=True)
    target += answer.gens.read(root)
    await answer.ended(again)
    answer.portions.enter_check(written, result, again)
