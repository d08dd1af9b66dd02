"""Verifiers that ask a runtime for their verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.engine.generation import Generation
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.tree import Verdict

REST, LONGEST_REST = 2.0, 60.0  # seconds


class Asking:
    """A verifier that asks one runtime. A failure rejects, and the runtime is then not asked for a while, longer each
    time, so that it does not delay every step.
    """

    name: str

    def __init__(self, backend: RuntimeBackend) -> None:
        self.backend = backend
        self._failures, self._rests_until = 0, 0.0

    def ask(
        self, inquiry: Inquiry, begin: Callable[[], ProgramState], read: Callable[[Generation], Verdict]
    ) -> Verdict | Awaitable[Verdict]:
        """The verdict of one generation, or a failed verdict at once while the runtime is not asked.

        Args:
            begin: starts the generation and returns its state.
            read: makes the verdict from the generation.
        """
        now = inquiry.state.stream_executor.loop.time
        if now() < self._rests_until:
            return self._failed(f"the {self.name} failed just now")

        async def asked() -> Verdict:
            try:
                verdict = read(await inquiry.generation(begin()))
            except LookaheadError as error:
                if error.retryable and now() >= self._rests_until:  # concurrent failures count as one
                    self._rests_until = now() + min(LONGEST_REST, REST * 2**self._failures)
                    self._failures += 1
                return self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - of ``read``, which may be anybody's
                return self._failed(repr(error))
            self._failures = 0
            return verdict

        return asked()

    def _failed(self, why: str) -> Verdict:
        return Verdict(False, self.name, why, failed=True)
