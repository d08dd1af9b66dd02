"""Answers by the real programs on scheduled runtimes, several at once, and what they took."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lr_sglang.algorithm import policy
from lr_sglang.api.runner import PROGRAMS
from lr_sglang.config import ROLES, Limits, Lookahead, Sampling
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.steps.trace import Trace
from lr_sglang.tasks import Question
from lr_sglang.tasks.task import messages
from lr_sglang.user_programs.request_maker import RequestMaker
from tests.simulated.alike import Alike, AlikeWriter
from tests.simulated.clock import run_virtually
from tests.simulated.scheduled import ScheduledTransport, scheduled_roles
from tests.simulated.scheduler import Flags
from tests.simulated.times import Times

SAMPLING = Sampling(temperature=0.6, top_p=0.95, seed=1)
NO_FLAGS = Flags()
# Of a prompt of 35 tokens, as those of the measured tables; they differ from its third token on.
QUESTION = "{} pens cost some dollars and the hats are as many: how much is it in all?"


@dataclass(frozen=True)
class Setting:
    """One way to answer.

    Attributes:
        mode: by its name; ``sd`` and ``lookahead+sd`` have ``layer`` on the target.
        flags: further ones of all servers.
    """

    mode: str
    layer: Flags = NO_FLAGS
    depth: int = 6
    reading: str = "auto"
    verifier: str = "judge"
    flags: Flags = NO_FLAGS

    def server_flags(self, times: Times) -> dict[str, Flags]:
        """The flags of each server."""
        plain = replace(self.flags, overlap=times.overlap)
        target = replace(
            plain,
            layer=self.layer.layer,
            draft_tokens=self.layer.draft_tokens,
            layer_agreement=self.layer.layer_agreement,
            overlap=times.overlap and not self.layer.layer,
        )
        return {role: target if role == "target" else plain for role in ROLES}


@dataclass(frozen=True)
class Made:
    """The answers of one setting.

    Attributes:
        seconds: mean, of an answer; ``pace``: tokens per second of an answer; ``first_pace``: of
            those that were made first and are not counted.
        prefills, passes: of the target, for each step of the answers.
        requests: to the target, for each step.
        busy: share of the time in which each server computed: of the target in prefills and in
            passes.
    """

    seconds: float
    pace: float
    alpha: float | None
    prefills: float
    passes: float
    requests: float
    busy: Mapping[str, float]
    first_pace: float
    traces: tuple[Trace, ...] = ()


def answers(
    times: Times,
    writer: AlikeWriter,
    setting: Setting,
    at_once: int,
    count: int,
    *,
    first: int = 0,
    seeded: bool = True,
) -> Made:
    """Makes ``count`` answers, ``at_once`` at a time, each of its own question.

    Args:
        first: further answers that are made before and are not counted. As many run beside the last
            ones that are counted.
    """
    number_made = count + first + (at_once - 1 if first else 0)

    async def make() -> Made:
        roles = scheduled_roles(times, writer, setting.server_flags(times), seeded=seeded)
        loop, mode = asyncio.get_running_loop(), MODES[setting.mode]
        maker = RequestMaker(roles, "paper", policy.RunStatistics())
        given = Lookahead(depth=setting.depth, reading=setting.reading, verifier=setting.verifier)
        look = mode.lookahead(given)
        if mode.ahead:
            random.seed(SAMPLING.seed)  # the probes' prompts, of which the cache may have a token
            await maker.measure_costs(look)
        free, began = asyncio.Semaphore(at_once), loop.time()
        servers = {role: roles[role].transport for role in ROLES}
        before = {role: _counts(one) for role, one in servers.items()}

        async def answer(asked: Question) -> Trace:
            async with free:
                request = maker.make(mode, look, SAMPLING, Limits(), question=asked.id)
                program = PROGRAMS[mode.program]
                await run_program(
                    program, messages(asked.question), request, backend=roles["target"]
                )
                return request.trace

        questions = (Question(str(n), QUESTION.format(n)) for n in range(number_made))
        made = await asyncio.gather(*map(answer, questions))
        seconds = loop.time() - began
        spent = {
            role: [new - old for new, old in zip(_counts(one), before[role], strict=True)]
            for role, one in servers.items()
        }
        steps = sum(len(one.steps) for one in made)
        prefills, passes, prefilling, decoding = spent["target"]
        traces = made[first : first + count]
        judged = sum(one.judged for one in traces)
        busy = {"prefills": prefilling / seconds, "passes": decoding / seconds}
        for role in ("draft", "judge"):
            busy[role] = (spent[role][2] + spent[role][3]) / seconds
        return Made(
            fmean(one.seconds for one in traces),
            _pace(traces),
            sum(one.accepted for one in traces) / judged if judged else None,
            prefills / steps,
            passes / steps,
            sum(len(one.of("target")) for one in made) / steps,
            busy,
            _pace(made[:first]),
            tuple(traces),
        )

    return run_virtually(make())


def _pace(traces: Sequence[Trace]) -> float:
    """Tokens per second of an answer."""
    seconds = sum(one.seconds for one in traces)
    return sum(len(one.ids) for one in traces) / seconds if seconds else 0.0


def _counts(transport: object) -> tuple[float, ...]:
    assert isinstance(transport, ScheduledTransport)
    one = transport.scheduler
    return one.prefills, one.passes, one.prefilled, one.decoded


def pair(
    agreement: float,
    alpha: float,
    step_tokens: int,
    steps: int,
    spread: float = 0.35,
    seed: int = 0,
) -> AlikeWriter:
    """The texts of a pair of models."""
    model = Alike(
        agreement=agreement,
        alpha=(alpha,),
        tokens=step_tokens,
        steps=steps,
        spread=spread,
        seed=seed,
    )
    return AlikeWriter(model)
