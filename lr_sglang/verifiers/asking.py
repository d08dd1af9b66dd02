"""The base class of verifiers that ask a runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps.branch import Generation
from lr_sglang.steps.step import Verdict

# first and maximum backoff in seconds
BACKOFF = 2.0
LONGEST_BACKOFF = 10.0


class Asking:
    """A verifier that asks one runtime. A failure is a failed rejection; exponential backoff
    follows, during which verdicts fail at once, so that a failing runtime does not delay every
    step; a success ends it.
    """

    name: str

    def __init__(self, backend: RuntimeBackend) -> None:
        self.backend = backend
        self._failures = 0
        self._backoff_until = 0.0

    def ask(
        self,
        inquiry: Inquiry,
        begin: Callable[[], ProgramState],
        read: Callable[[Generation], Verdict],
    ) -> Verdict | Awaitable[Verdict]:
        """The verdict of one generation, or a failed verdict at once during backoff.

        Args:
            begin: starts the generation and returns its state.
            read: returns the verdict of the generation.
        """
        now = inquiry.state.stream_executor.loop.time
        if now() < self._backoff_until:
            return self._failed(f"the {self.name} failed a moment ago, and is asked again later")

        async def asked() -> Verdict:
            try:
                verdict = read(await inquiry.generation(begin()))
            except LookaheadError as error:
                # concurrent failures count as one
                if error.retryable and now() >= self._backoff_until:
                    self._backoff_until = now() + min(
                        LONGEST_BACKOFF, BACKOFF * 2 ** min(self._failures, 9)
                    )
                    self._failures += 1
                return self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - raised by ``read``, which may be a user's code
                return self._failed(repr(error))
            self._failures = 0
            self._backoff_until = 0.0
            return verdict

        return asked()

    def _failed(self, why: str) -> Verdict:
        return Verdict(False, self.name, why, failed=True)
