"""The target writes several steps in one generation: alone, or fed with what the draft writes ahead
of it; and the check of what it says of tokens that it reads.
"""

from __future__ import annotations

import asyncio

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.draft_line import DraftLine
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import fork
from lr_sglang.steps.step import StepStop

CHECKED = 8  # tokens of the target's own that it reads first, so that its reading is checked


async def write_alone(answer: Answer, tokens: int, stop: StepStop | None = None) -> None:
    """The target writes several steps in one generation, or up to ``stop``. What is known of the
    first one stays.
    """
    root = answer.tree.root
    target = fork(root.state, "target")
    target += answer.text(root.version.known)
    branch = answer.begin_branch("write", target, root)
    streamed = answer.request.on_tokens is not None
    target += answer.gens.several(root, tokens, streamed=streamed, stop=stop)
    await answer.keep_steps(branch)  # adds each step to the answer when it is written


async def write_fed(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, and verifies in each pass what the draft
    has written ahead of it; its tokens are those that it would write alone.
    """
    root = answer.tree.root
    target = fork(root.state, "target")
    branch = answer.begin_branch("feed", target, root)
    line = answer.begin_line(branch)
    target += answer.gens.several(root, tokens, streamed=True)
    ahead = asyncio.create_task(write_ahead(answer, line))
    try:
        await answer.keep_steps(branch, line)
    finally:
        line.close()
        await ahead


async def write_ahead(answer: Answer, line: DraftLine) -> None:
    """The draft writes ahead of the target, and again from the target's own token where they
    part.
    """
    while await line.has_room():
        draft = fork(answer.tree.root.state, "draft")
        draft += answer.text(line.unkept)
        line.begin_branch(draft)
        draft += line.gen()


async def check_reading(answer: Answer) -> None:
    """The target writes some tokens and reads them: what it reads must be what it wrote. An exact
    answer begins with them; of another they are not kept.
    """
    root = answer.tree.root
    target = fork(root.state, "target")
    written = answer.begin_branch("write", target, root)
    tokens = min(CHECKED, answer.tree.room(root))
    target += answer.gens.gen(root, "target", tokens, return_logprob=True, top_logprobs_num=1)
    result = await answer.result_of(written)
    if isinstance(result, LookaheadError):
        raise result
    root.version.guess = result.ids
    target = fork(root.state, "target")
    target += answer.text(result.ids)
    again = answer.begin_branch("read", target, root)
    target += answer.gens.read([root])
    await answer.result_of(again)
    answer.portions.enter_check(written, result, again)
