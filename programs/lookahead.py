"""Lookahead reasoning (arXiv 2506.19830, section 3.1) as a SGLang program: propose, read, expand,
verify, accept.

A node of ``answer.tree`` is a prefix of the answer, with the program's state after it. Its children
are the drafted versions of the next step, ``node.version`` is the target's own. ``fork`` copies a
state onto a runtime. ``answer.begin_branch`` stands right before a fork's ``gen``, and says what it
is for: when the generation ends, ``first_done`` returns the node.

An exact answer is written in one generation of the target, which verifies what the draft writes
ahead of it (``write_fed``), or is read in pieces (``programs/reading.py``). Where looking ahead
does not pay, the target writes several steps in one generation too, fed or alone.
"""

from __future__ import annotations

import asyncio

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import Answer, answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.line import Line, feeds
from lr_sglang.algorithm.reading import Reading
from lr_sglang.frontend.dsl import Conversation, Rendered, converse, fork
from lr_sglang.programs.reading import check_reading, read_answer
from lr_sglang.steps.tree import Node

ALONE = 256  # tokens that the target writes alone where reading drafts does not pay
STREAMED = 2048  # tokens of one streamed generation, whose events each have all tokens so far


@sgl.function
async def lookahead(s: ProgramState, messages: Conversation | Rendered, job: AnswerRequest) -> None:
    """Answers a conversation: ``s.text()`` ends with the answer, ``job.trace`` has its steps and
    branches.
    """
    converse(s, messages)
    async with answering(s, job) as answer:  # at its end, requests that still run are aborted
        await write_answer(answer)


async def write_answer(answer: Answer) -> None:
    """Writes the answer to its end; what follows a judged thinking, which the user reads, is an
    exact answer of its own.
    """
    await write_steps(answer)
    if answer.concluded and not answer.complete:
        await write_steps(answer.conclusion())


async def write_steps(answer: Answer) -> None:
    """Writes the steps of an answer, in the schedule of its request."""
    cycle = asynchronous if answer.job.lookahead.schedule == "async" else synchronous
    if answer.reader.must_check:
        await check_reading(Reading(answer))  # once for a server; these tokens are not kept
    fed = feeds(answer)
    while not answer.over:
        if fed and answer.job.exact:
            await write_fed(answer, answer.tree.room(answer.tree.root))
        elif fed and (tokens := answer.policy.tokens_alone()):
            await write_fed(answer, tokens)
        elif answer.reader.reads_alone(answer.policy):
            if not await read_answer(answer):
                await write_alone(answer, answer.policy.tokens_alone() or ALONE)
        elif tokens := answer.policy.tokens_alone():
            await write_alone(answer, tokens)
        else:
            await cycle(answer)


async def asynchronous(answer: Answer) -> None:
    """Processes one arrival: drafts, target steps and verdicts overlap, and each is processed as
    soon as it arrives.
    """
    propose(answer)
    read(answer)
    expand(answer, answer.tree.depth - 1)
    node = await answer.first_done()  # of the step after it: a version or a part, or a verdict
    verify(answer, node)
    accept(answer)


async def synchronous(answer: Answer) -> None:
    """One cycle of Algorithm 1: ``depth`` steps are drafted, the target has its version of each and
    of the one after them, all are judged. A version that is read takes several rounds: a read, the
    draft of what is missing, a read of that.
    """
    for _ in range(answer.tree.depth):
        propose(answer)
        await answer.all_done()  # the drafts
    begun = 1
    while begun:
        begun = read(answer)
        begun += expand(answer, answer.tree.depth)
        for node in await answer.all_done():  # the target's steps, and verdicts
            verify(answer, node)
    accept(answer)


def propose(answer: Answer) -> None:
    """The draft writes the next step, in ``width`` versions, after every prefix that has room for
    one more.
    """
    if not answer.can_ask("draft"):
        return
    for node in answer.tree.to_propose():
        if width := answer.policy.width(node):
            node.version.read_first = answer.reader.reads_next_step()
            for child in answer.tree.add_children(node, width):
                draft = fork(node.state, "draft")
                answer.begin_branch("draft", draft, node, child)
                draft += answer.gens.step(node, "draft")


def read(answer: Answer) -> int:
    """The target reads the drafted tokens after each prefix where it is to read before it writes.
    From its log-probabilities and the answer's seed follows what it would have drawn at each place:
    up to the first token that differs, and with its own there, this is its version of the step, or
    the beginning of it. Returns how many requests began.
    """
    nodes = answer.tree.to_read()
    for node in nodes:
        target = fork(node.state, "target")
        target += answer.text(node.version.known)
        target += answer.text(node.version.guess)
        answer.begin_branch("target", target, node)
        target += answer.gens.read(node)
    return len(nodes)


def expand(answer: Answer, furthest: int) -> int:
    """The target writes its own next step after each prefix up to ``furthest`` steps ahead, or what
    is missing of one that it has read in part; or the draft writes a piece of that, to be read
    next, while that pays. Returns how many requests began.

    The forks run in parallel and share their prefix in the radix cache.
    """
    nodes = [n for n in answer.tree.to_expand(furthest) if answer.policy.should_expand(n)]
    for node in nodes:
        role = answer.reader.writer_of_rest(node.version)
        writer = fork(node.state, role)
        writer += answer.text(node.version.known)
        answer.begin_branch(role, writer, node)
        writer += answer.gens.rest(node, role)
    return len(nodes)


def verify(answer: Answer, node: Node) -> None:
    """Asks the verifier about each drafted step after ``node``, if the target's version is there
    too. Versions that end differently are rejected without it.
    """
    for child in node.children:
        answer.judging.ask(child)


def accept(answer: Answer) -> None:
    """Chooses each step that is decided: an accepted draft, or the target's version when all drafts
    are rejected. The answer grows by the steps up to the first undecided one.
    """
    for node in answer.tree.to_decide():
        if answer.tree.decide(node):
            answer.cancel_all_but_chosen(node)
    while not answer.over and (kept := answer.tree.advance()):
        answer.s += answer.keep(kept)


async def write_alone(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, while looking ahead does not pay."""
    root = answer.tree.root
    if answer.job.on_tokens is not None:
        tokens = min(tokens, STREAMED)
    target = fork(root.state, "target")
    answer.begin_branch("target", target, root)
    target += answer.gens.gen(root, "target", min(tokens, answer.tree.room(root)))
    await answer.keep_steps()  # adds each step to the answer when it is written


async def write_fed(answer: Answer, tokens: int) -> None:
    """The target writes several steps in one generation, and verifies in each pass what the draft
    has written ahead of it; its tokens are those that it would write alone.
    """
    root = answer.tree.root
    if not answer.roles["target"].increments:
        tokens = min(tokens, STREAMED)
    target = fork(root.state, "target")
    line = Line(answer, answer.begin_branch("target", target, root))
    target += answer.gens.gen(root, "target", tokens)
    ahead = asyncio.create_task(write_ahead(line))
    try:
        await answer.keep_steps(line)
    finally:
        line.close()
        await ahead


async def write_ahead(line: Line) -> None:
    """The draft writes ahead of the target, and again from the target's own token where they
    part.
    """
    while await line.has_room():
        draft = fork(line.state(), "draft")
        line.begin_branch(draft)
        draft += line.gen()
