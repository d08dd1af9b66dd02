"""Makes the request of every answer, with its verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from weakref import WeakKeyDictionary

from lr_sglang import verifiers
from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.inquiry import Verifier
from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.config import FED, Limits, Lookahead, Sampling
from lr_sglang.engine.doubts import JudgeCheck
from lr_sglang.engine.probes import Costs, measure_costs
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import Able, Mode, check_mode
from lr_sglang.steps.trace import Event, StepRecord
from lr_sglang.verifiers import known_pairs, verifier_registry
from lr_sglang.verifiers.known_pairs import alike, pairs

_costs: WeakKeyDictionary[RuntimeBackend, Costs | None] = WeakKeyDictionary()


class RequestMaker:
    """Makes the requests of answers that share runtimes, verifiers and statistics.

    Args:
        roles: backends by role.
        judge_prompt: name of the judge's prompt; empty for the paper's.
        statistics: shared by all answers; None to share them among answers with equal ``Lookahead``
            settings.

    Attributes:
        running: the requests of answers that are being made.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        judge_prompt: str,
        statistics: RunStatistics | None = None,
    ) -> None:
        self.roles = roles
        self.judge_prompt = judge_prompt or "paper"
        self.running: set[AnswerRequest] = set()
        self.statistics: Callable[[Lookahead], RunStatistics] = (
            cache(lambda _: policy.RunStatistics()) if statistics is None else lambda _: statistics
        )
        self.verifier = cache(self._new_verifier)
        # once: its file may change, or go
        self._asks_judge = cache(verifier_registry.follows_judge)

    def _new_verifier(self, name: str) -> Verifier:
        if "draft" not in self.roles:
            hint = "give a draft, or mode autoregressive"
            raise ConfigError("lookahead reasoning needs a draft runtime", hint=hint)
        return verifiers.make_verifier(name, verifiers.Setup(self.roles, self.judge_prompt))

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
            look: settings, as the mode uses them.
            question, sample: identify the answer, as in ``AnswerRequest``.
            on_step, on_event: as in ``AnswerRequest``.

        Raises:
            ConfigError: there is no such verifier, or the deployment lacks the runtime it needs.
        """
        made = AnswerRequest(
            lookahead=look,
            sampling=sampling,
            limits=limits,
            verifier=self.verifier(look.verifier) if mode.ahead else None,
            question=question,
            sample=sample,
            experience=self.statistics(look),
            on_step=on_step,
            on_event=on_event,
            lossless=mode.lossless and look.policy == "fixed",
        )
        if mode.ahead:
            made.check = self._check(look)
        if mode.judged and look.conclusion == "exact":
            made.conclusion_verifier = self.verifier("exact")
        return made

    def check(self, mode: Mode, verifier: str, *, guesses: bool = False) -> None:
        """Checks that the runtimes can answer in a mode.

        Args:
            verifier: that compares versions where the mode asks one.
            guesses: whether ``sd`` may be the guesses that a target with the token layer ``fed``
                makes itself.

        Raises:
            ConfigError: they cannot, or there is no such verifier.
        """
        target = self.roles["target"]
        layer = target.facts.token_layer if guesses or target.facts.fed is None else FED
        judged = mode.judged and verifier_registry.needs_judge(verifier)
        check_mode(mode, Able(self.roles, layer, judged))

    async def check_judge(self, look: Lookahead) -> None:
        """Asks a verifier that may ask the judge about pairs of steps, once.

        Warns if it accepts too many pairs that differ, or none of those that say the same.

        Raises:
            ConfigError: as ``make``.
        """
        check = self._check(look)
        if check is not None and not check.begun:
            check.begun = True
            # a separate verifier: after failures here, the answers' verifier must still ask the
            # judge, and report them
            apart = self._new_verifier(look.verifier)
            differ = pairs(self.judge_prompt)
            shown = (
                known_pairs.show(apart, self.roles, check, each) for each in (differ, alike(differ))
            )
            accepted, understood = await asyncio.gather(*shown)
            check.add(accepted, look.max_false_accepts)
            check.shown_alike(understood, self.judge_prompt)

    async def prepare(self, look: Lookahead) -> None:
        """Prepares the first answer: ``check_judge``, then ``measure_costs``."""
        await self.check_judge(look)
        await self.measure_costs(look)

    async def measure_costs(self, look: Lookahead) -> None:
        """Measures the costs of requests to the target, once, if the policy is adaptive."""
        target = self.roles["target"]
        statistics = self.statistics(look)
        if look.policy != "adaptive" or statistics.measured:
            return
        statistics.measured = True
        statistics.layered = bool(target.facts.token_layer)
        with suppress(LookaheadError):  # the first answer will report it
            if target not in _costs:
                target.bind(asyncio.get_running_loop())
                _costs[target] = await measure_costs(target.transport, target.facts.room)
            statistics.load("target").costs = _costs[target]

    def _check(self, look: Lookahead) -> JudgeCheck | None:
        """The check of a verifier that may ask the judge; None for oracles, or without limit."""
        judge = self.roles.get("judge")
        if judge is None or look.max_false_accepts == 1:
            return None
        return judge.checks.of(look.verifier) if self._asks_judge(look.verifier) else None
