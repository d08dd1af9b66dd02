"""Answers on the virtual clock: the real programs on simulated runtimes, whose time
alone passes.
"""

import asyncio
from collections.abc import Mapping, Sequence

from lr_sglang.algorithm import policy
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.trace import Trace
from lr_sglang.tasks import Question
from lr_sglang.tasks.task import messages
from lr_sglang.user_programs.request_maker import RequestMaker
from tests.simulated.clock import run_virtually
from tests.simulated.model import TARGET, Simulation, Writer
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.transport import simulated_roles


def questions(count: int) -> list[Question]:
    """Questions for simulated models."""
    return [Question(f"simulated-{n}", f"Simulated question {n}?") for n in range(count)]


def numbers(writer: Writer, asked: Sequence[Question]) -> list[int]:
    """The simulated models' numbers of these questions."""
    chat = writer.words.tokenizer.chat
    return [writer.words.number(chat(messages(question.question), True).ids) for question in asked]


def answer_all(
    simulation: Simulation, look: Lookahead, asked: Sequence[Question], writer: Writer | None = None
) -> list[Trace]:
    """Answers questions concurrently.

    Returns:
        The trace of each answer, with times of the virtual clock.
    """
    return run_virtually(
        answer_on(simulated_roles(simulation, writer), look, asked, simulation.model.seed)
    )


async def answer_on(
    roles: Mapping[str, RuntimeBackend], look: Lookahead, asked: Sequence[Question], seed: int = 0
) -> list[Trace]:
    """As ``answer_all``, on the running loop with its clock, and on any runtimes."""
    statistics = policy.RunStatistics()
    maker, sampling = RequestMaker(roles, "paper", statistics), Sampling(seed=seed)
    requests = [
        maker.make(MODES["lookahead"], look, sampling, Limits(), question=one.id) for one in asked
    ]
    programs = (
        run_program(lookahead, messages(one.question), request, backend=roles["target"])
        for one, request in zip(asked, requests, strict=True)
    )
    await asyncio.gather(*programs)
    return [request.trace for request in requests]


def alone(
    simulation: Simulation, asked: Sequence[int], writer: Writer | None = None
) -> list[float]:
    """Seconds of each answer by the target alone, with all answers made concurrently.

    Args:
        asked: the numbers of the questions.
    """
    writer = writer or Writer(simulation.model)
    step, words, steps = writer.model.step, writer.words, range(simulation.model.steps)

    async def answer() -> list[float]:
        target, now = (
            SimulatedRuntime("target", simulation, writer),
            asyncio.get_running_loop().time,
        )

        async def one(rid: str, question: int) -> float:
            tokens = sum(len(step(words, question, n, TARGET)) for n in steps)
            await target.serve(simulation.work("target", tokens), rid)
            return now()

        return await asyncio.gather(*(one(str(n), question) for n, question in enumerate(asked)))

    return run_virtually(answer())
