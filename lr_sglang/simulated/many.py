"""Answers on the virtual clock: one by the programs themselves, many side by side on the same runtimes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from lr_sglang.config import Lookahead
from lr_sglang.programs.lookahead import accept, asynchronous, expand, propose, synchronous, verify
from lr_sglang.simulated.engine import Ticket
from lr_sglang.simulated.model import TARGET, Writer
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.virtual import VirtualAnswer, World
from lr_sglang.tree import Node

Turns = Generator[None, None, Any]


def answer_all(
    simulation: Simulation,
    look: Lookahead,
    questions: Sequence[int],
    writer: Writer | None = None,
    told: bool = True,
    alike: bool = False,
) -> list[VirtualAnswer]:
    """Answers questions that are asked at the same moment.

    Args:
        told: whether the runtimes say how many slots they have.
        questions: their numbers, see ``Words.number``.
        alike: see ``World``.
    """
    writer = writer or Writer(simulation.model)
    if simulation.engine().steady:  # then they do not know of each other, and every one has a world of its own
        worlds = [World(simulation, look, writer=writer, alike=alike) for _ in questions]
        answers = [VirtualAnswer(world, number) for world, number in zip(worlds, questions, strict=True)]
        for answer in answers:
            (asynchronous if look.schedule == "async" else synchronous)(answer)
            answer.land()
        return answers
    world = World(simulation, look, told, writer, alike)
    answers = [VirtualAnswer(world, number) for number in questions]
    side_by_side(world, answers)
    return answers


def side_by_side(world: World, answers: Sequence[VirtualAnswer]) -> None:
    """Runs answers of one world; whose event is next is next."""
    turns = {answer: turns_of(answer) for answer in answers}
    for answer in answers:
        next(turns[answer])
    while turns:
        answer = world.tick()
        if answer in turns and next(turns[answer], answer) is answer:
            answer.land()
            del turns[answer]


def turns_of(answer: VirtualAnswer) -> Turns:
    """``asynchronous`` and ``synchronous`` of programs/lookahead.py, yielding where those wait."""
    ahead = answer.world.look.schedule == "async"
    while not answer.ended:
        if ahead:
            propose(answer)
            expand(answer, answer.tree.depth - 1)
            verify(answer, (yield from _first_done(answer)))
        else:
            for _ in range(answer.tree.depth):
                propose(answer)
                for node in (yield from _all_done(answer)):
                    verify(answer, node)
            yield from _all_done(answer)
            accept(answer)
            expand(answer, answer.tree.depth)
            for node in (yield from _all_done(answer)):
                verify(answer, node)
            yield from _all_done(answer)
        accept(answer)


def _first_done(answer: VirtualAnswer) -> Generator[None, None, Node]:
    while not answer.inbox:
        yield
    return answer.take()


def _all_done(answer: VirtualAnswer) -> Generator[None, None, list[Node]]:
    nodes = []
    while answer.open:
        nodes.append((yield from _first_done(answer)))
    return list(dict.fromkeys(nodes))


def alone(simulation: Simulation, questions: Sequence[int], writer: Writer | None = None) -> list[float]:
    """Seconds that the target needs for each answer without lookahead, all asked at the same moment."""
    writer, engine = writer or Writer(simulation.model), simulation.engine()
    tickets = []
    for question in questions:
        lengths = [
            len(writer.model.step(writer.words, question, n, TARGET)) for n in range(simulation.model.steps)
        ]  # fmt: skip
        tickets.append(Ticket(simulation.work("target", sum(lengths)), question))
    for ticket in tickets:
        engine.add(0.0, ticket)
    ends: dict[Ticket, float] = {}
    while (head := engine.head()) is not None:
        ends[head] = engine.due(head)
        engine.remove(ends[head], head)
    return [ends[ticket] for ticket in tickets]
