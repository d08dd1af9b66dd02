"""A deployment for questions from Python: starts its servers, answers questions of any thread,
stops the servers.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import warnings
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
from lr_sglang.runtimes.seed_check import without_seeds
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend, backend_of, backends
from lr_sglang.verifiers.requests import RequestMaker

STOP_AGAIN = (
    0.1  # seconds between calls of ``stop``, of which one may be lost while a step is processed
)


def deployment(
    of: str | Path | Deployment | Mapping[str, RuntimeBackend] | None = None,
    *,
    attach: str = "",
    logs: str | Path | None = None,
    timeout: float = 600.0,
    **runtimes: str,
) -> OpenDeployment:
    """A deployment for the questions of this process: a context manager that starts and stops its
    servers.

    Args:
        of: a TOML file, a built-in name, a ``Deployment``, or backends by role. The default is the
            pocket models, or only ``runtimes`` if these name a target.
        attach: instead of ``of``, the name of a deployment that ``lr-sglang launch`` runs; no
            server is started then.
        logs: folder of the servers' logs; a temporary folder by default.
        timeout: seconds for the servers to start.
        runtimes: ``target``, ``draft`` and ``judge``: a model, or the URL of a running server.

    Raises:
        ConfigError: there is no such deployment or role, or it does not run.
    """
    if attach and of is not None:
        raise ConfigError(
            "of and attach both say where the runtimes are", hint="leave one of them out"
        )
    if isinstance(of, Mapping):
        if runtimes:
            raise ConfigError(
                f"backends are given, and {', '.join(runtimes)} beside them", hint="leave one out"
            )
        return OpenDeployment(
            Deployment(name="given", runtimes={"target": Runtime(url="http://given")}),
            logs,
            timeout,
            of,
        )
    if attach:
        plan = launched.find(attach).attachable()
    elif of is None and "target" in runtimes:
        plan = deployments.custom(runtimes["target"])
    else:
        plan = of if isinstance(of, Deployment) else load_deployment(of or deployments.DEFAULT)
    if "judge" in runtimes:  # the prompt was for another judge
        plan = plan.replace(judge_prompt="")
    return OpenDeployment(override_all(plan, runtimes), logs, timeout)


class OpenDeployment:
    """A deployment that answers questions, also of several threads at once. ``deployment`` makes
    it.

    Attributes:
        config: its runtimes, and the defaults of its answers.
        backends: returns the backend for programs with given settings; only while it is open.
        given: whether ``deployment`` was called with backends.
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
        """Starts the servers, for code that cannot use a ``with`` block; ``close`` stops them.

        Raises:
            LookaheadError: as ``runtimes.launch``.
        """
        if self._requests is not None:
            return self
        roles = self._given
        with ExitStack() as stack:
            if roles is None:
                if not self.config.judge_prompt and (judge := self.config.runtime("judge")):
                    self.config = self.config.replace(
                        judge_prompt=prompt_for(model_of("judge", judge))
                    )
                logs = self._logs or stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="lr-sglang-")
                )
                roles = stack.enter_context(
                    deployed(self.config, Path(logs), timeout=self._timeout)
                )
                for text in without_seeds(roles):
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
            requests = RequestMaker(roles, self.config.judge_prompt)
            if not self.given:
                call(requests.check_judge(self.config.lookahead), roles["target"].loop)
            self._stack = stack.pop_all()
        self._requests, self.backends = requests, backends(requests)
        return self

    def close(self) -> None:
        """Cancels the answers in progress, then stops the servers. Idempotent; ``open`` starts them
        again.
        """
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
        """The maker of its answers' requests.

        Raises:
            ConfigError: it is not open.
        """
        requests = self._requests  # read once: another thread may close the deployment
        if requests is None:
            raise ConfigError(
                "the deployment is not open", hint="with lr.deployment(...) as d: ..."
            )
        return requests

    @property
    def roles(self) -> Mapping[str, RuntimeBackend]:
        """Backends by role.

        Raises:
            ConfigError: it is not open.
        """
        return self.requests.roles

    def backend(self, **options: Any) -> LookaheadBackend:
        """A backend for ``sgl.set_default_backend`` or ``program.run(backend=...)``, with lookahead
        reasoning.

        Args:
            options: fields of ``Lookahead``.

        Raises:
            ConfigError: there is no such option, or the verifier lacks its runtime.
        """
        return backend_of(self.requests, self.config.lookahead.with_options(**options), ahead=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its answers."""
        return self.roles["target"].loop

    @contextmanager
    def answering(self, job: AnswerRequest) -> Iterator[None]:
        """Registers an answer in progress, so that ``close`` cancels it.

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
