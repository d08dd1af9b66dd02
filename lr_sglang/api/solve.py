"""Lookahead reasoning from Python: a deployment starts its servers, answers questions of any
thread, and stops the servers.

with lr.deployment("pocket") as d:          # three servers, until the end of the block
    print(lr.solve("...", deployment=d))    # and asolve, stream
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from lr_sglang.api.configuration import GIVEN
from lr_sglang.api.runner import answer
from lr_sglang.config import ConfigModel, Deployment, Limits, Lookahead, Sampling
from lr_sglang.engine.loop import STOP_SECONDS, call, elsewhere
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES, check_verifier
from lr_sglang.results import machine, record
from lr_sglang.results.record import Record
from lr_sglang.runtimes import folders, launched
from lr_sglang.runtimes.attach import faults, model_of
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.placement.models import prompt_for
from lr_sglang.sglang_api.interpreter import SglFunction
from lr_sglang.steps.trace import Event, StepRecord, Trace
from lr_sglang.tasks import Question
from lr_sglang.tasks.boxed import boxed
from lr_sglang.user_programs import program_registry
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend, backend_for_requests
from lr_sglang.user_programs.program import Program
from lr_sglang.user_programs.request_maker import RequestMaker

# Seconds between calls of ``stop``, of which one may be lost while a step is processed.
STOP_AGAIN = 0.1


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
        logs: folder of the servers' logs; by default a temporary one, which stays if a server does
            not start.
        timeout: seconds for the servers to start.
        runtimes: ``target``, ``draft`` and ``judge``: a model, or the URL of a running server.

    Raises:
        ConfigError: there is no such deployment or role, or it does not run.
    """
    if isinstance(of, Mapping):
        if runtimes:
            raise ConfigError(
                f"backends are given, and {', '.join(runtimes)} beside them", hint="leave one out"
            )
        return OpenDeployment(GIVEN, logs, timeout, of)
    plan = launched.chosen(of, attach, runtimes)
    if "judge" in runtimes:  # the prompt was for another judge
        plan = plan.replace(judge_prompt="")
    return OpenDeployment(plan, logs, timeout)


class OpenDeployment:
    """A deployment that answers questions, also of several threads at once. ``deployment`` makes
    it.

    Attributes:
        config: its runtimes, and the defaults of its answers.
        given: whether ``deployment`` was called with backends.
    """

    def __init__(
        self,
        config: Deployment,
        logs: str | Path | None,
        timeout: float,
        roles: Mapping[str, RuntimeBackend] | None = None,
    ) -> None:
        self.config = config
        self._logs = logs
        self._timeout = timeout
        self._given = roles
        self.given = roles is not None
        self._requests: RequestMaker | None = None
        self._end: Callable[[], Any] = lambda: None

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
                logs = self._logs or stack.enter_context(folders.temporary_logs())
                roles = stack.enter_context(
                    deployed(self.config, Path(logs), timeout=self._timeout)
                )
                for text in faults(roles):
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
            requests = RequestMaker(roles, self.config.judge_prompt)
            if not self.given:
                call(requests.check_judge(self.config.lookahead), roles["target"].loop)
            # also when it is forgotten, or the script ends without closing it
            self._end = weakref.finalize(self, _end, requests, stack.pop_all())
        self._requests = requests
        return self

    def close(self) -> None:
        """Cancels the answers in progress, then stops the servers. Idempotent; ``open`` starts them
        again.
        """
        self._requests = None
        self._end()

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
        return backend_for_requests(
            self.requests, self.config.lookahead.with_options(**options), ahead=True
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its answers."""
        return self.roles["target"].loop


def _end(requests: RequestMaker, stack: ExitStack) -> None:
    """Cancels the answers in progress, then stops the servers."""
    deadline = time.monotonic() + STOP_SECONDS
    while requests.running and time.monotonic() < deadline:
        for request in list(requests.running):
            request.stop()
        time.sleep(STOP_AGAIN)
    stack.close()


Asked = str | Sequence[Mapping[str, str]]
S = TypeVar("S", bound=ConfigModel)
_WITH_LAYER = {
    "lookahead": "lookahead+sd",
    "autoregressive": "sd",
}  # names for runtimes with a token layer
_OPTIONS = [name for kind in (Lookahead, Sampling, Limits) for name in kind.model_fields]


@dataclass(frozen=True)
class Solution:
    """One answered question. As a string it is the answer's text.

    Attributes:
        question: the user's last message.
        trace: the steps and branches of the answer.
        record: the JSON record of ``lr-sglang run``.
    """

    question: str
    trace: Trace = field(repr=False)
    record: Record = field(repr=False)

    @property
    def text(self) -> str:
        """The whole answer, its reasoning included."""
        return self.trace.text

    @property
    def answer(self) -> str | None:
        r"""The content of the last ``\boxed{}``; None if there is none."""
        return boxed(self.trace.text)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The steps of the answer, in order."""
        return tuple(self.trace.steps)

    @property
    def alpha(self) -> float | None:
        """Step acceptance rate; None if no draft was compared."""
        return self.trace.alpha

    @property
    def seconds(self) -> float:
        """Seconds from the question to the last step."""
        return self.trace.seconds

    def __str__(self) -> str:
        return self.text


class AnswerTask:
    """A question with checked options.

    Raises:
        ConfigError: no such option or mode here, the question is empty or invalid, or the
            deployment is not open.
    """

    def __init__(
        self,
        live: OpenDeployment,
        question: Asked,
        program: str | SglFunction | None = None,
        mode: str = "lookahead",
        on_event: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(live, OpenDeployment):
            raise ConfigError(
                f"deployment: expected an open one, not {live!r:.80}",
                hint="with lr.deployment(...) as d:",
            )
        self.live = live
        asked: Any = question
        if isinstance(question, str):
            asked = [{"role": "user", "content": question}]
        try:
            self.messages: list[dict[str, str]] = [dict(one) for one in asked]
            whole = all(one["role"].strip() and one["content"].strip() for one in self.messages)
        except (TypeError, ValueError, KeyError, AttributeError):
            whole = False
        if not whole or not self.messages:
            hint = "a text, or messages with 'role' and 'content'"
            raise ConfigError("the question is empty, or none", hint=hint)
        self.program = Program.load(program) if program else None
        for name in options:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS, f"one of {', '.join(sorted(_OPTIONS))}")
                if self.program is not None and name in self.program.function.arg_names:
                    hint = f"it is the program's: program=NAME.bind({name}=...)"
                raise ConfigError(f"there is no option {name!r}", hint=hint)
        layered = live.roles["target"].facts.token_layer
        known = MODES.get(_WITH_LAYER.get(mode, mode) if layered else mode)
        if known is None:
            raise ConfigError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
        self.mode = known
        config = live.config
        if options.get("verifier") is not None:
            check_verifier([known], options["verifier"], "verifier")
            if isinstance(program, str) and program:
                program_registry.check_program_verifier(program, options["verifier"])
        look = known.lookahead(_with(config.lookahead, options))
        live.requests.check(known, look.verifier)
        digest = hashlib.sha256(repr(self.messages).encode("utf-8", "replace")).hexdigest()
        self.request = live.requests.make(
            known,
            look,
            _with(config.sampling, options),
            _with(config.limits, options),
            question=digest[:16],
            on_event=on_event,
        )

    async def run(self) -> Solution:
        """Answers the question, on the event loop of the deployment.

        Raises:
            LookaheadError: a runtime failed, or the request was stopped.
        """
        requests = self.live.requests
        request = self.request
        mode = self.mode
        if mode.ahead and not self.live.given:
            await requests.prepare(request.lookahead)
        await answer(self.program, mode, self.messages, request, requests)
        asked = self.messages[-1]["content"]
        config = {
            "program": self.program.name if self.program else mode.program,
            "lookahead": request.lookahead.to_dict() if mode.ahead else None,
            "sampling": request.sampling.to_dict(),
            "limits": request.limits.to_dict(),
        }
        question = Question(request.question, asked)
        made = record.make_record(question, mode.name, request, config, machine.versions())
        return Solution(asked, request.trace, made)


def _with(settings: S, options: dict[str, Any]) -> S:
    """A copy with the options that are fields of it."""
    return settings.with_options(
        **{k: v for k, v in options.items() if k in type(settings).model_fields}
    )


def solve(
    question: Asked,
    *,
    deployment: OpenDeployment,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Solution:
    """Answers one question.

    Args:
        question: a text, or a conversation: messages with ``role`` and ``content``.
        deployment: an open deployment, which several threads may use.
        program: as ``--program`` of ``lr-sglang run``, or an ``@sgl.function``.
        mode: as ``--mode`` of ``lr-sglang run``.
        on_event: called with each event, on the event loop, which waits for it.
        options: fields of ``Lookahead``, ``Sampling`` and ``Limits``, such as ``depth``,
            ``temperature``, ``max_tokens``; the defaults are the deployment's.

    Raises:
        ConfigError: there is no such option, mode or program, or the question is empty.
        LookaheadError: a runtime failed, or the deployment was closed.
    """
    task = AnswerTask(deployment, question, program, mode, on_event, **options)
    return call(task.run(), deployment.loop)


async def asolve(
    question: Asked,
    *,
    deployment: OpenDeployment,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Solution:
    """``solve`` for the caller's event loop; cancelling it stops the answer, on the servers too."""
    task = AnswerTask(deployment, question, program, mode, on_event, **options)
    return await elsewhere(task.run(), deployment.loop)


class Stream:
    """The steps of one answer, to be read once. Leaving the loop early cancels the answer, on the
    servers too.
    """

    def __init__(self, task: AnswerTask) -> None:
        self._task = task
        self._made: Future[Solution] | None = None

    @property
    def solution(self) -> Solution:
        """The whole answer, when all steps have been read.

        Raises:
            ConfigError: not all steps have been read.
        """
        if (
            self._made is None
            or not self._made.done()
            or self._made.cancelled()
            or self._made.exception()
        ):
            raise ConfigError("the answer is not complete", hint="read the stream to its end first")
        return self._made.result()

    def close(self) -> None:
        """Cancels the answer if it is not complete, and waits until it has ended. Idempotent."""
        while self._made is not None and not self._made.done():
            self._task.request.stop()
            wait([self._made], STOP_AGAIN)

    def __iter__(self) -> Iterator[StepRecord]:
        ready: SimpleQueue[StepRecord | None] = SimpleQueue()
        made = self._begin(ready.put)
        try:
            while (step := ready.get()) is not None:
                yield step
        finally:
            self.close()
        made.result()

    async def __aiter__(self) -> AsyncIterator[StepRecord]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Queue[StepRecord | None]()

        def put(step: StepRecord | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, and no task of it waits
                loop.call_soon_threadsafe(ready.put_nowait, step)

        made = self._begin(put)
        try:
            while (step := await ready.get()) is not None:
                yield step
        finally:
            await asyncio.shield(loop.run_in_executor(None, self.close))
        made.result()

    def _begin(self, put: Callable[[StepRecord | None], None]) -> Future[Solution]:
        if self._made is not None:
            raise ConfigError("a stream can be read once", hint="lr.stream(...) again")
        self._task.request.on_step = put
        self._task.request.on_tokens = lambda ids: None  # so that generations are streamed
        self._made = asyncio.run_coroutine_threadsafe(self._task.run(), self._task.live.loop)
        self._made.add_done_callback(lambda _: put(None))
        return self._made


def stream(question: Asked, *, deployment: OpenDeployment, **given: Any) -> Stream:
    """The steps of an answer as they are kept, with ``for`` or with ``async for``. Arguments as for
    ``solve``.

    The steps of a program come when it ends, because only then the generations in its answer are
    known. Those of ``lookahead(show=True)``, and of programs that take the ``AnswerRequest``, come
    as they are kept.

    Raises:
        ConfigError: as ``solve``.
    """
    return Stream(AnswerTask(deployment, question, **given))
