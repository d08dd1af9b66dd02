"""Answers on the virtual clock: the real programs over simulated runtimes, in the time that only these need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from lr_sglang import verifiers
from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.engine.clock import run_virtually
from lr_sglang.engine.pool import Pool
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.run import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.simulated.model import TARGET, Writer
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.timing import Ticket
from lr_sglang.simulated.transport import simulated_roles
from lr_sglang.steps.trace import Trace
from lr_sglang.tasks import Question
from lr_sglang.tasks.prompts import messages


@dataclass(eq=False)
class _SameDrafts(AnswerRequest):
    """A job whose drafts follow from their position and number alone: what is compared has the same luck."""

    def seed(self, *where: Any) -> int:
        return int(where[-1])


def questions(count: int) -> list[Question]:
    """Questions that simulated models answer."""
    return [Question(f"simulated-{n}", f"Simulated question {n}?") for n in range(count)]


def numbers(writer: Writer, asked: Sequence[Question]) -> list[int]:
    """Under which number a simulated model knows them."""
    chat = writer.words.tokenizer.chat
    return [writer.words.number(chat(messages(question.question), True).ids) for question in asked]


def answer_all(
    simulation: Simulation,
    look: Lookahead,
    asked: Sequence[Question],
    writer: Writer | None = None,
    *,
    told: bool = True,
    alike: bool = False,
    each: int | None = None,
) -> list[Trace]:
    """Answers questions that are asked at the same moment.

    Args:
        told: whether the runtimes say how many requests they run at once.
        alike: the drafts of a position are the same after every prefix, and for every width.
        each: requests at once on every runtime that are one answer's own; None shares them all.

    Returns:
        The trace of each; its ``seconds`` are those of the virtual clock, until the last step was kept.
    """
    writer = writer or Writer(simulation.model)

    async def answer() -> list[Trace]:
        roles = simulated_roles(simulation, writer)
        if not told:
            for backend in roles.values():
                backend.set_capacity(None, None)
        sampling, experience = Sampling(seed=simulation.model.seed), policy.RunStatistics()
        shares = [roles if each is None else _share(roles, each) for _ in asked]
        jobs = [
            (_SameDrafts if alike else AnswerRequest)(
                look,
                sampling,
                verifier=verifiers.make(look.verifier, verifiers.Setup(mine, "paper")),
                question=one.id,
                experience=experience,
                fast=verifiers.fast(look, mine),
            )
            for one, mine in zip(asked, shares, strict=True)
        ]
        programs = (
            run_program(lookahead, messages(one.question), job, backend=mine["target"])
            for one, job, mine in zip(asked, jobs, shares, strict=True)
        )
        await asyncio.gather(*programs)
        return [job.record for job in jobs]

    return run_virtually(answer())


def _share(roles: Mapping[str, RuntimeBackend], slots: int) -> dict[str, RuntimeBackend]:
    """The same runtimes, with slots of one answer's own."""
    mine = {role: copy(backend) for role, backend in roles.items()}
    for backend in mine.values():
        backend.roles, backend.pool = mine, Pool(slots)
    return mine


def alone(simulation: Simulation, asked: Sequence[int], writer: Writer | None = None) -> list[float]:
    """Seconds that the target needs for each answer without lookahead, all asked at the same moment.

    Args:
        asked: the numbers of the questions.
    """
    writer, timing = writer or Writer(simulation.model), simulation.timing()
    tickets = []
    for question in asked:
        lengths = [
            len(writer.model.step(writer.words, question, n, TARGET)) for n in range(simulation.model.steps)
        ]  # fmt: skip
        tickets.append(Ticket(simulation.work("target", sum(lengths)), question))
    for ticket in tickets:
        timing.add(0.0, ticket)
    ends: dict[Ticket, float] = {}
    while (head := timing.head()) is not None:
        ends[head] = timing.due(head)
        timing.remove(ends[head], head)
    return [ends[ticket] for ticket in tickets]
