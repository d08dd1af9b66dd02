"""Asking a runtime for a verdict: a failure rejects, and the runtime is then left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lr_sglang.call import Call
from lr_sglang.dsl import Inquiry
from lr_sglang.errors import LookaheadError
from lr_sglang.generation import Generation
from lr_sglang.tree import Verdict

REST, LONGEST_REST = 2.0, 60.0  # seconds


class Asking:
    """Puts questions to one runtime.

    A failure counts as a rejection: slower, never wrong. A runtime that is down or hangs is left alone for a while,
    longer each time, so that it does not hold up every step.

    Args:
        name: the verifier's, for its verdicts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._failures, self._rests_until, self._lock = 0, 0.0, threading.Lock()

    def ask(
        self, inquiry: Inquiry, start: Callable[[Call], None], read: Callable[[Generation], Verdict]
    ) -> Verdict | None:
        """None when it is asked; else the runtime rests.

        Args:
            start: sends the request that the call is for.
            read: makes the verdict of the answer.
        """
        if time.monotonic() < self._rests_until:
            return Verdict(False, self.name, f"the {self.name} failed just now", failed=True)

        def heard(result: Any) -> None:
            try:
                if not isinstance(result, Generation):
                    raise result
                verdict = read(result)
                self._failures = 0
            except LookaheadError as error:
                if error.retryable:
                    self._rest()
                verdict = Verdict(False, self.name, str(error), failed=True)
            except Exception as error:  # noqa: BLE001 - of ``read``, which may be anybody's; somebody waits for it
                verdict = Verdict(False, self.name, repr(error), failed=True)
            inquiry.reply(verdict)

        start(inquiry.begin(heard))
        return None

    def _rest(self) -> None:
        """What was in flight together fails together, and is one failure."""
        with self._lock:
            if time.monotonic() >= self._rests_until:
                self._rests_until = time.monotonic() + min(LONGEST_REST, REST * 2**self._failures)
                self._failures += 1
