"""Makes the request of every answer, with its verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from weakref import WeakKeyDictionary

from lr_sglang import verifiers
from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.inquiry import Verifier
from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.costs import Costs, measure
from lr_sglang.engine.transport import Transport
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import Mode
from lr_sglang.steps.events import Event
from lr_sglang.steps.judge_check import JudgeCheck
from lr_sglang.steps.trace import StepRecord
from lr_sglang.verifiers import known_pairs, verifier_registry
from lr_sglang.verifiers.pair_files import alike, pairs

_costs: WeakKeyDictionary[RuntimeBackend, Costs | None] = WeakKeyDictionary()


class RequestMaker:
    """Makes the requests of answers that share runtimes, verifiers and statistics.

    Args:
        roles: backends by role.
        judge_prompt: name of the prompt that the judge is given, empty for the paper's.
        statistics: what all answers learn together; None is, for each ``Lookahead``, what those with it learn.
        measure: finds what requests cost the runtime at a transport, as ``engine.costs.measure`` does.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        judge_prompt: str,
        statistics: RunStatistics | None = None,
        measure: Callable[[Transport, int | None], Awaitable[Costs | None]] = measure,
    ) -> None:
        self._measure = measure
        self.roles, self.judge_prompt = roles, judge_prompt or "paper"
        self.statistics = cache(policy.experience_for) if statistics is None else lambda look: statistics
        self.verifier = cache(self._new_verifier)

    def _new_verifier(self, name: str) -> Verifier:
        if "draft" not in self.roles:
            hint = "give a draft, or mode autoregressive"
            raise ConfigError("lookahead reasoning needs a draft runtime", hint=hint)
        return verifiers.make(name, verifiers.Setup(self.roles, self.judge_prompt))

    def make(
        self,
        mode: Mode,
        look: Lookahead,
        sampling: Sampling,
        limits: Limits,
        *,
        question: str = "",
        sample: int = 0,
        on_step: Callable[[StepRecord], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> AnswerRequest:
        """The request of one answer.

        Args:
            look, sampling: as asked for; the mode may change them.
            question, sample: identify the answer, for its seeds.
            on_step, on_event: as in ``AnswerRequest``.

        Raises:
            ConfigError: there is no such verifier, or the deployment lacks the runtime it needs.
        """
        look = mode.lookahead(look)
        made = AnswerRequest(
            lookahead=look,
            sampling=mode.sampling(sampling),
            limits=limits,
            verifier=self.verifier(look.verifier) if mode.ahead else None,
            question=question,
            sample=sample,
            experience=self.statistics(look),
            on_step=on_step,
            on_event=on_event,
        )
        if mode.ahead:
            made.check = self._check(look)
        return made

    async def check_judge(self, look: Lookahead) -> None:
        """Shows a verifier that may ask the judge pairs of steps that differ, once; warns where it is not trusted.

        It is shown pairs that say the same, too, and a warning says if it accepts none of them.

        Raises:
            ConfigError: as ``make``, or the deployment's pairs cannot be read any more.
        """
        check = self._check(look)
        if check is not None and not check.begun:
            check.begun = True
            # another one than the answers', which ask the judge even if it fails now, and report it
            apart = self._new_verifier(look.verifier)
            differ = pairs(self.roles["judge"].checks.pairs or self.judge_prompt)
            shown = (known_pairs.show(apart, self.roles, check, each) for each in (differ, alike(differ)))
            accepted, understood = await asyncio.gather(*shown)
            check.add(accepted, look.max_false_accepts)
            check.shown_alike(understood, self.judge_prompt)

    async def prepare(self, look: Lookahead) -> None:
        """What is done once before the first answer: ``check_judge`` and ``measure_costs``."""
        await self.check_judge(look)
        await self.measure_costs(look)

    async def measure_costs(self, look: Lookahead) -> None:
        """Measures what requests cost the target, once, where the adaptive policy will want to know it."""
        target, statistics = self.roles["target"], self.statistics(look)
        if look.policy != "adaptive" or statistics.measured or target.simulated:
            return
        statistics.measured = True
        with suppress(LookaheadError):  # the first answer will say what is wrong
            if target not in _costs:
                target.bind(asyncio.get_running_loop())
                _costs[target] = await self._measure(target.transport, target.room)
            statistics.load("target").costs = _costs[target]

    def _check(self, look: Lookahead) -> JudgeCheck | None:
        """The check of a verifier that may ask the judge; None for oracles, simulated judges, or if all are trusted."""
        judge, chosen = self.roles.get("judge"), verifier_registry.parse(look.verifier)
        if judge is None or judge.simulated or look.max_false_accepts == 1 or chosen.kind == "oracle":
            return None
        return judge.checks.of(look.verifier) if "judge" in verifier_registry.asks(look.verifier) else None
