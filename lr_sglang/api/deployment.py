"""A deployment for questions from Python: brought up, asked from any number of threads, and taken down."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.loop import STOP_SECONDS, call
from lr_sglang.errors import Cancelled, ConfigError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes import deployments, launched, load_deployment, override_all
from lr_sglang.runtimes.attach import model_of
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.placement.models import prompt_for
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend, backend_of, backends
from lr_sglang.verifiers.requests import RequestMaker

STOP_AGAIN = 0.1  # seconds: a stop that meets an answer in the middle of a step may be lost


def deployment(
    of: str | Path | Deployment | Mapping[str, RuntimeBackend] | None = None,
    *,
    attach: str = "",
    logs: str | Path | None = None,
    timeout: float = 600.0,
    **runtimes: str,
) -> OpenDeployment:
    """A deployment for the questions of this process: a context manager, within which its servers are up.

    Args:
        of: a TOML file, a built-in name or a ``Deployment``; backends by role are used as they are. The default is the
            pocket models, or nothing but ``runtimes`` where these name a target.
        attach: in its place, the name of one that ``lr-sglang launch`` keeps up; nothing is started then.
        logs: where servers log; a temporary folder by default.
        timeout: seconds to start up.
        runtimes: ``target``, ``draft`` and ``judge``: a model, or the URL of a server that runs.

    Raises:
        ConfigError: there is no such deployment or role, or it is not up.
    """
    if attach and of is not None:
        raise ConfigError("of and attach both say where the runtimes are", hint="leave one of them out")
    if isinstance(of, Mapping):
        if runtimes:
            raise ConfigError(f"backends are given, and {', '.join(runtimes)} beside them", hint="leave one out")
        return OpenDeployment(Deployment("given", {"target": Runtime(url="http://given")}), logs, timeout, of)
    if attach:
        plan = launched.find(attach).attachable()
    elif of is None and "target" in runtimes:
        plan = deployments.custom(runtimes["target"])
    else:
        plan = of if isinstance(of, Deployment) else load_deployment(of or deployments.DEFAULT)
    if "judge" in runtimes:  # the prompt was written for another one
        plan = plan.replace(judge_prompt="")
    return OpenDeployment(override_all(plan, runtimes), logs, timeout)


class OpenDeployment:
    """A deployment that answers questions, of any number of threads at once. Made by ``deployment``.

    Attributes:
        config: what it is made of, and the defaults of its answers.
        backends: what programs run on, by their settings; while it is open.
        given: its backends were, and are used as they are.
    """

    def __init__(
        self,
        config: Deployment,
        logs: str | Path | None,
        timeout: float,
        roles: Mapping[str, RuntimeBackend] | None = None,
    ) -> None:
        self.config, self._logs, self._timeout = config, logs, timeout
        self._given, self.given = roles, roles is not None
        self._requests: RequestMaker | None = None
        self._stack, self._running = ExitStack(), set[AnswerRequest]()

    def open(self) -> OpenDeployment:
        """Brings the servers up, for where a ``with`` block does not fit; ``close`` takes them down.

        Raises:
            LookaheadError: as ``runtimes.launch``.
        """
        if self._requests is not None:
            return self
        roles = self._given
        with ExitStack() as stack:
            if roles is None:
                if not self.config.judge_prompt and (judge := self.config.runtime("judge")):
                    self.config = self.config.replace(judge_prompt=prompt_for(model_of("judge", judge)))
                logs = self._logs or stack.enter_context(tempfile.TemporaryDirectory(prefix="lr-sglang-"))
                roles = stack.enter_context(deployed(self.config, Path(logs), timeout=self._timeout))
            requests = RequestMaker(roles, self.config.judge_prompt)
            if not self.given:
                call(requests.check_judge(self.config.lookahead), roles["target"].loop)
            self._stack = stack.pop_all()
        self._requests, self.backends = requests, backends(requests)
        return self

    def close(self) -> None:
        """Stops what is being answered, and then the servers. Idempotent; ``open`` brings it up again."""
        closed, self._requests = self._requests, None
        deadline = time.monotonic() + STOP_SECONDS
        while self._running and time.monotonic() < deadline:
            for job in list(self._running):
                job.stop()
            time.sleep(STOP_AGAIN)
        if closed is not None:
            closed.verifier.cache_clear()
            self.backends.cache_clear()
        self._stack.close()

    def __enter__(self) -> OpenDeployment:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def requests(self) -> RequestMaker:
        """Makes what its answers ask for.

        Raises:
            ConfigError: it is not open.
        """
        requests = self._requests  # another thread may close it
        if requests is None:
            raise ConfigError("the deployment is not open", hint="with lr.deployment(...) as d: ...")
        return requests

    @property
    def roles(self) -> Mapping[str, RuntimeBackend]:
        """Backends by role.

        Raises:
            ConfigError: it is not open.
        """
        return self.requests.roles

    def backend(self, **options: Any) -> LookaheadBackend:
        """For ``sgl.set_default_backend`` or ``program.run(backend=...)``: any SGLang program, answered by lookahead.

        Args:
            options: fields of ``Lookahead``.

        Raises:
            ConfigError: there is no such option, or the verifier lacks its runtime.
        """
        return backend_of(self.requests, self.config.lookahead.with_options(**options), ahead=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that its answers are made on."""
        return self.roles["target"].loop

    @contextmanager
    def answering(self, job: AnswerRequest) -> Iterator[None]:
        """While an answer is made: closing stops it.

        Raises:
            Cancelled: the deployment was closed.
        """
        if self._requests is None:
            raise Cancelled("the deployment was closed")
        self._running.add(job)
        try:
            yield
        finally:
            self._running.discard(job)
