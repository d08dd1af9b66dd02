"""Lookahead reasoning (arXiv 2506.19830, section 3.1) as a SGLang program: propose, read, expand,
verify, accept.

A node of ``answer.tree`` is a prefix of the answer, with the program's state after it. Its children
are the drafted versions of the next step, ``node.version`` is the target's own. ``fork`` copies a
state onto a runtime. ``answer.begin_branch`` stands right before a fork's ``gen``, and says what it
is for: when it ends, its result is in the tree, and ``first_done`` returns the nodes.

An exact answer is written in one generation of the target, alone or while it verifies what the
draft writes ahead (``programs/generations.py``), or is read portion by portion (``read_portions``);
where neither can be done, by the cycle with the verifier ``exact``. A judged answer, too, is
written without the tree (fed, by portions, or alone) while that is faster (``policy=adaptive``).
"""

from __future__ import annotations

from typing import assert_never

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import Answer, answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.frontend.dsl import Conversation, Rendered, converse, fork
from lr_sglang.programs.generations import check_reading, write_alone, write_fed
from lr_sglang.steps.step import DELIMITER, StepStop
from lr_sglang.steps.tree import Node


@sgl.function
async def lookahead(
    s: ProgramState, messages: Conversation | Rendered, request: AnswerRequest
) -> None:
    """Answers a conversation: ``s.text()`` ends with the answer, ``request.trace`` has its steps
    and branches.
    """
    converse(s, messages)
    async with answering(s, request) as answer:  # at its end, requests that still run are aborted
        await write_answer(answer)


async def write_answer(answer: Answer) -> None:
    """Writes the answer to its end; what follows a judged thinking, which the user reads, is an
    exact answer of its own.
    """
    if not answer.tree.over:
        await write_by_ways(answer)
    if answer.tree.concluded and not answer.tree.complete:
        await write_by_ways(answer.conclusion())


async def write_by_ways(answer: Answer) -> None:
    """Writes the steps of an answer, each in the way that ``Ways`` decides."""
    process = process_arrival if answer.request.lookahead.schedule == "async" else process_cycle
    if answer.reader.must_check:
        await check_reading(answer)  # until the server is known to tell what it draws
    while not answer.tree.over:
        match answer.ways.next_way():
            case "fed":
                await write_fed(answer, answer.ways.tokens_at_once())
            case "portions":
                await read_portions(answer)
            case "alone":
                await write_alone(answer, answer.ways.tokens_at_once())
            case "written" | "read":  # after each prefix of the tree
                await process(answer)
            case other:
                assert_never(other)


async def process_arrival(answer: Answer) -> None:
    """Processes one arrival: drafts, target steps and verdicts overlap, and each is processed as
    soon as it arrives.
    """
    propose(answer)
    read(answer)
    expand(answer)
    for node in await answer.first_done():  # of the step after it: a version, or a verdict
        verify(answer, node)
    accept(answer)


async def process_cycle(answer: Answer) -> None:
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
        begun += expand(answer)
        for node in await answer.all_done():  # the target's steps, and verdicts
            verify(answer, node)
    accept(answer)


async def read_portions(answer: Answer) -> None:
    """The target reads what the draft writes, portion by portion, while the draft goes on; whole
    steps are kept as they are known.
    """
    while answer.portions.next_portion():
        expand(answer)
        read(answer)
        if answer.portions.drafts_on():
            guess(answer, answer.tree.root)
        await answer.first_done()  # a portion, or what the target says of one
    answer.portions.end()
    if answer.tree.root.version.known and not answer.tree.over:
        await write_alone(answer, answer.tree.room(answer.tree.root), StepStop(DELIMITER))


def propose(answer: Answer) -> None:
    """The draft writes the next step, in ``width`` versions, after every prefix that has room for
    one more.
    """
    if not answer.can_ask("draft"):
        return
    for node in answer.tree.to_propose():
        if width := answer.policy.width(node):
            node.version.read_first = answer.ways.reads_first()
            for child in answer.tree.add_children(node, width):
                draft = fork(node.state, "draft")
                answer.begin_branch("draft", draft, node, child=child)
                draft += answer.gens.step(node, "draft")


def read(answer: Answer) -> int:
    """The target reads the drafted tokens after each prefix where it is to read before it writes,
    those of all prefixes on one path in one request. From its log-probabilities and the answer's
    seed follows what it would have drawn at each place: up to the first token that differs, and
    with its own there, this is its version of the step, or the beginning of it. Returns how many
    requests began.
    """
    paths = answer.tree.to_read()
    for path in paths:
        target = fork(path[-1].state, "target")  # after the drafted steps before
        target += answer.text(path[-1].version.known)
        target += answer.text(path[-1].version.guess)
        answer.begin_branch("read", target, *path)
        target += answer.gens.read(path)
    return len(paths)


def expand(answer: Answer) -> int:
    """The target writes its own next step after each prefix that the policy wants, or what is
    missing of one that it has read in part; or, while that pays, the draft guesses a portion of it,
    which is read next. Returns how many requests began.

    The forks run in parallel and share their prefix in the radix cache.
    """
    nodes = [
        n for n in answer.tree.to_expand(answer.policy.furthest) if answer.policy.should_expand(n)
    ]
    for node in nodes:
        if answer.ways.guesses_rest(node.version):
            guess(answer, node)
        else:
            target = fork(node.state, "target")
            target += answer.text(node.version.known)
            answer.begin_branch("write", target, node)
            target += answer.gens.step(node, "target")
    return len(nodes)


def guess(answer: Answer, node: Node) -> None:
    """The draft writes what may follow in the target's version of the step after ``node``."""
    draft = fork(node.state, "draft")
    draft += answer.text(node.version.known)
    draft += answer.text(node.version.guess)
    answer.begin_branch("guess", draft, node)
    draft += answer.gens.guess(node)


def verify(answer: Answer, node: Node) -> None:
    """Asks the verifier about each drafted step after ``node``, if the target's version is there
    too; not where it is clear that they differ (``without_a_judge``).
    """
    for child in node.children:
        answer.judging.ask(child)


def accept(answer: Answer) -> None:
    """Chooses each step that is decided: an accepted draft, or the target's version when all drafts
    are rejected. The answer grows by the steps up to the first undecided one.
    """
    for node in answer.tree.to_decide():
        if answer.tree.decide(node):
            answer.keeper.drop_others(node)
    answer.keeper.keep_decided()
