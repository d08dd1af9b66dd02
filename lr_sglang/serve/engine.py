"""Behind the routes: whether lookahead reasoning or the target alone answers a request, and what
answers share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from lr_sglang.algorithm import policy
from lr_sglang.engine.lateness import Lateness
from lr_sglang.engine.loop import keep_what_is_imported
from lr_sglang.errors import BadReply, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.errors import refusal
from lr_sglang.serve.health import Health, Watch
from lr_sglang.serve.logs import log
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.passed_request import PassedRequest, passed_request
from lr_sglang.serve.program import ServedProgram
from lr_sglang.serve.protocol import PENALTIES, ChatRequest
from lr_sglang.serve.request_options import RequestOptions, options_of
from lr_sglang.serve.settings import Service
from lr_sglang.serve.target_routes import TargetRoute
from lr_sglang.serve.thinking import Thinking, think_then_conclude
from lr_sglang.verifiers.requests import RequestMaker

LIST_SECONDS = 2.0  # for the target to list its models


class Running(Protocol):
    """An answer that is being made: a ``ServedAnswer``."""

    task: asyncio.Task[None] | None

    def end(self, last: Any) -> None:
        """Queues the last piece."""

    def stop(self) -> None:
        """Stops it on every runtime."""


class AnswerEngine:
    """Decides how requests are answered. Belongs to the event loop.

    Args:
        roles: backends that are ready.
        service: what the operator allows.

    Attributes:
        running: the answers that are being made.

    Raises:
        ConfigError: a verifier lacks its runtime, or a mode its draft; there is no such program.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        service: Service,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self.roles, self.service, self.metrics, self.health = roles, service, metrics, health
        self.admission = Admission(service.concurrency, service.queue)
        self.running: set[Running] = set()
        self.lateness, self._target_name = Lateness(), ""
        known = policy.RunStatistics()
        self.requests = RequestMaker(roles, service.judge_prompt, known)
        if any(MODES[mode].ahead for mode in service.modes):
            for name in (*service.verifiers, "exact"):
                self.requests.verifier(name)
        self.operator_program = (
            ServedProgram(service.program, self.requests) if service.program else None
        )
        self.concluding = ServedProgram(think_then_conclude, self.requests, continues=True)
        self.thinking = Thinking(roles, service, self.admission.check)
        self._watch()
        keep_what_is_imported()

    def _watch(self) -> None:
        watch, metrics = self.metrics.watch, self.metrics
        watch(metrics.running, lambda: len(self.running))
        watch(metrics.waiting, lambda: self.admission.waiting)
        watch(metrics.loop_late, self.lateness.p99)
        if (judge := self.roles.get("judge")) is not None:
            judge.checks.warn = lambda reason: log(
                "judge not trusted", logging.WARNING, role=judge.role, reason=reason
            )
            watch(
                metrics.false_accepts,
                lambda: found.surely if (found := judge.checks.worst()) else 0.0,
            )
        for role, one in self.health.watches.items():
            watch(metrics.up, partial(_is_up, one), role=role)
            watch(metrics.branches, one.running, role=role)
            watch(metrics.degraded_seconds, one.total, role=role)

    async def plan(
        self, route: TargetRoute, body: Mapping[str, Any]
    ) -> RequestOptions | PassedRequest:
        """How a request is answered: by lookahead reasoning as far as that supports it, else by the
        target alone.

        Raises:
            Refusal: the request is wrong, or not allowed.
        """
        service = self.service
        if route.reads is None:
            return passed_request(route, body, ("route",), service)
        follows = PENALTIES if self.roles["target"].counts_written else ()
        request, why = route.reads.read(body, not service.passes, follows)
        alone: tuple[str, ...] = ()
        if service.passes and request.model.startswith(
            f"{service.model}:"
        ):  # an adapter, which has no draft
            alone = ("model",)
        elif (
            service.passes and request.n and request.n > service.concurrency
        ):  # more than can be made here at a time
            alone = ("n",)
        if not why and not alone:
            return options_of(request, service)
        # what follows the thinking is one generation of the target's, without constraints
        free = isinstance(request, ChatRequest) and not request.constraints.names()
        if not alone and free and not request.thinks_not:
            conclusion = await self.thinking.conclusion(body, why)
            if (
                conclusion is not None
                and (options := options_of(request, service, conclusion)).mode.ahead
            ):
                return options
        if (alone or why) and request.names_lookahead:
            raise request.cannot(alone or why)
        return passed_request(route, body, why or alone, service)

    @property
    def idle(self) -> bool:
        """Whether no answer is being made, or about to be."""
        return not self.admission.running

    async def prepare(self) -> None:
        """Asks the judge about steps that differ, if the operator wants that, and measures what
        requests cost.
        """
        for name in self.service.verifiers if self.service.check_judge else ():
            await self.requests.check_judge(self.service.lookahead.replace(verifier=name))
        for mode in self.service.modes:
            await self.requests.measure_costs(MODES[mode].lookahead(self.service.lookahead))

    def close(self) -> None:
        """Admits no more requests; running answers go on."""
        self.admission.close()

    def stop(self) -> None:
        """Stops the running answers, too."""
        self.close()
        for one in list(self.running):
            one.end(refusal("shutting_down"))
            one.stop()

    async def ended(self, seconds: float) -> bool:
        """Waits up to ``seconds`` for the running answers; returns whether all have ended."""
        tasks = [one.task for one in self.running if one.task is not None]
        return not tasks or not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def adapters(self) -> list[str]:
        """The names under which requests ask for LoRA adapters of the target; none if it does not
        list them.
        """
        if not self.service.passes or self.health.watches["target"].down:
            return []
        try:
            listed = await self.roles["target"].transport.get("/v1/models", LIST_SECONDS)
            return [f"{self.service.model}:{one['id']}" for one in listed.get("data", [])[1:]]
        except (LookaheadError, LookupError, TypeError):
            return []

    async def target_name(self) -> str:
        """The name under which the target itself serves its model; raises ``LookaheadError`` if it
        lists none.
        """
        if not self._target_name:
            listed = await self.roles["target"].transport.get("/v1/models")
            try:
                self._target_name = str(listed["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise BadReply("/v1/models lists no model", role="target") from error
        return self._target_name


def _is_up(watch: Watch) -> float:
    return float(not watch.down)
