"""Lookahead reasoning (arXiv 2506.19830, section 3.1) as a SGLang program: propose, expand, verify,
accept.

A node of ``answer.tree`` is a prefix of the answer, with the program's state after it. ``fork``
copies that state onto a runtime, and ``answer.gen_step`` is a ``sgl.gen`` that ends after one step.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import Answer, answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.reading import Reading
from lr_sglang.frontend.dsl import Conversation, Rendered, converse, fork
from lr_sglang.programs.reading import prove, read_answer
from lr_sglang.steps.tree import Node

ALONE = 256  # tokens that the target writes alone where reading drafts does not pay
STREAMED = 2048  # tokens of one streamed generation: SGLang sends all so far with each event


@sgl.function
async def lookahead(s: ProgramState, messages: Conversation | Rendered, job: AnswerRequest) -> None:
    """Answers a conversation: ``s.text()`` ends with the answer, ``job.record`` has its steps and
    branches.
    """
    converse(s, messages)
    async with answering(s, job) as answer:  # at its end, requests that still run are aborted
        await write_answer(answer)


async def write_answer(answer: Answer) -> None:
    """Writes the answer to its end, in the schedule of its request."""
    schedule = asynchronous if answer.job.lookahead.schedule == "async" else synchronous
    if answer.is_to_prove():
        await prove(Reading(answer))
    while not answer.ended:
        if answer.job.exact and answer.can_read():
            if not await read_answer(answer):
                await write_alone(answer, ALONE)
        elif tokens := answer.policy.tokens_alone():
            await write_alone(answer, tokens)
        else:
            await schedule(answer)


async def asynchronous(answer: Answer) -> None:
    """Processes one arrival: drafts, target steps and verdicts overlap, and each is processed as
    soon as it arrives.
    """
    propose(answer)
    read(answer)
    expand(answer, answer.tree.depth - 1)  # at most ``depth`` target steps at once
    node = await answer.first_done()  # whose next step was drafted, written by the target or judged
    verify(answer, node)
    accept(answer)


async def synchronous(answer: Answer) -> None:
    """One cycle of Algorithm 1: ``depth`` steps are drafted, the target writes ``depth + 1``, all
    are judged.
    """
    for _ in range(answer.tree.depth):
        propose(answer)
        await answer.all_done()  # the drafts
    while read(answer) + expand(answer, answer.tree.depth):
        for node in await answer.all_done():  # the target's steps, and verdicts
            verify(answer, node)
    await answer.all_done()  # the verdicts
    accept(answer)


def propose(answer: Answer) -> None:
    """The draft writes the next step, in ``width`` versions, after every prefix that has room for
    one more.
    """
    for node in answer.tree.to_propose():
        width = answer.policy.width(node)
        if width and answer.can_ask("draft"):
            for child in answer.tree.add_children(node, width):
                draft = fork(node.state, "draft")
                answer.watch("draft", draft, node, child)
                draft += answer.gen_step(node, "draft")


def read(answer: Answer) -> int:
    """The target reads each drafted step that is to be read before it is written: where it would
    have written just that, there is nothing to write. Returns how many are read.
    """
    nodes = answer.tree.to_read()
    for node in nodes:
        target = fork(node.state, "target")
        target += answer.begun(node)
        answer.watch("target", target, node)
        target += answer.gen_read(node)
    return len(nodes)


def expand(answer: Answer, furthest: int) -> int:
    """The target writes its own next step, or the rest of it, after each prefix with at most
    ``furthest`` undecided steps; or the draft does, for the target to read. Returns how many.

    Its forks run in parallel and share their prefix in the radix cache.
    """
    nodes = [n for n in answer.tree.to_expand(furthest) if answer.policy.should_expand(n)]
    for node in nodes:
        role = answer.guesser(node)
        state = fork(node.state, role)
        state += answer.begun(node)
        answer.watch(role, state, node)
        state += answer.gen_rest(node, role)
    return len(nodes)


def verify(answer: Answer, node: Node) -> None:
    """Asks the verifier about each drafted step after ``node``, if the target's version is there
    too.

    Versions that end differently are rejected without it, and drafts that come later than the
    target's version as well.
    """
    for child in node.children:
        pair = answer.tree.pair(child)
        if pair is not None:
            answer.ask_verifier(child, pair)


def accept(answer: Answer) -> None:
    """Chooses each step that is decided: an accepted draft, or the target's version when all drafts
    are rejected. The answer grows by the steps up to the first undecided one.
    """
    for node in answer.tree.to_decide():
        if answer.tree.decide(node):
            answer.cancel_all_but_chosen(node)
    while not answer.ended and (kept := answer.tree.advance()):
        answer.s += answer.keep(kept)


async def write_alone(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, while looking ahead does not pay."""
    root = answer.tree.root
    target = fork(root.state, "target")
    answer.watch("target", target, root)
    most = min(tokens, answer.tree.room(root), STREAMED if answer.job.on_tokens else tokens)
    target += answer.gen(root, "target", most)
    await answer.keep_steps()
