"""Lookahead reasoning (arXiv 2506.19830, section 3.1) as a SGLang program: propose, expand, verify, accept.

``asynchronous`` and ``synchronous`` are the paper's two schedules. They call the same four functions; the difference
is what they wait for.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.frontend.dsl import converse, fork
from lr_sglang.steps.tree import Node


@sgl.function
async def lookahead(s: ProgramState, messages: list[dict[str, str]], job: AnswerRequest) -> None:
    """Answers a conversation: ``s.text()`` ends with the answer, ``job.record`` is its trace."""
    converse(s, messages)
    async with Answer(s, job) as answer:
        await look_ahead(answer)


async def look_ahead(answer: Answer) -> None:
    """Writes the answer to its end in the schedule of its request."""
    schedule = asynchronous if answer.job.lookahead.schedule == "async" else synchronous
    await schedule(answer)


async def asynchronous(answer: Answer) -> None:
    """Drafts, target steps and verdicts overlap: each reply is processed as soon as it arrives."""
    while not await alone(answer):
        propose(answer)
        expand(answer, answer.tree.depth - 1)
        node = await answer.first_done()
        verify(answer, node)
        accept(answer)


async def synchronous(answer: Answer) -> None:
    """Algorithm 1: draft ``depth`` steps, let the target write ``depth + 1``, judge them, keep the accepted run."""
    while not await alone(answer):
        for _ in range(answer.tree.depth):
            propose(answer)
            await answer.all_done()
        expand(answer, answer.tree.depth)
        for node in await answer.all_done():
            verify(answer, node)
        await answer.all_done()
        accept(answer)


async def alone(answer: Answer) -> bool:
    """Whether the answer has ended. While looking ahead does not pay, the target writes steps in one generation."""
    while not answer.ended and (tokens := answer.policy.alone()):
        target = fork(answer.tree.root.state, "target")
        target += sgl.gen("steps", max_tokens=tokens, **answer.job.sampling.drawn())
        await answer.write(target)
    return answer.ended


def propose(answer: Answer) -> None:
    """The draft writes the next step, in ``width`` versions, after every prefix that the tree may extend."""
    for node in answer.tree.to_propose():
        width = answer.policy.width(node)
        if width and answer.can_ask("draft"):
            for child in answer.tree.propose(node, width):
                draft = fork(node.state, "draft")
                draft += answer.step(node, "draft")
                child.drafting = answer.watch(draft, node, child)


def expand(answer: Answer, depth: int) -> None:
    """The target writes its own next step after every drafted prefix: parallel forks, one shared prefix."""
    for node in answer.tree.to_expand(depth):
        if answer.policy.should_expand(node) and answer.can_ask("target"):
            target = fork(node.state, "target")
            target += answer.step(node)
            node.expanding = answer.watch(target, node)


def verify(answer: Answer, node: Node) -> None:
    """Asks the verifier about each step after ``node`` of which both versions are there."""
    for child in node.children:
        pair = answer.tree.pair(child)
        if pair is not None:
            answer.ask(child, pair)


def accept(answer: Answer) -> None:
    """Keeps the accepted drafts and replaces the first rejected one by the target's step."""
    for node in answer.tree.to_decide():
        if answer.tree.decide(node):
            answer.cancel_all_but_chosen(node)
    while not answer.ended and (kept := answer.tree.advance()):
        answer.keep(kept)
