"""A runtime's transport with a gate in front: shut while the runtime is down, so that nobody waits for it."""

from __future__ import annotations

import threading
import time
from typing import Any

from lr_sglang.call import Call
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    LookaheadError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.transport import INFO_SECONDS, Transport, WorkerLost


class RuntimeAway(RuntimeDown):
    """A runtime that is known to be down. Whoever asks need not rest: the gate opens when it is back."""

    retryable = False


class Gate:
    """Counts what becomes of a runtime's requests, and lets none through while it is shut. A ``Transport``.

    Attributes:
        shut: why it is; empty when it is open.
        failures: in a row; ``answered`` is when the last request went well.
        unanswered: requests that were cancelled and never heard of, since one was.
        alarm: set when a request could not reach the runtime.
    """

    def __init__(self, inner: Transport, role: str) -> None:
        self.inner, self.role = inner, role
        self.shut = ""
        self.failures, self.unanswered, self.answered = 0, 0, time.monotonic()
        self.alarm = threading.Event()
        self._lock = threading.Lock()
        self._calls: dict[Call, float] = {}
        self._kicked: set[Call] = set()

    def generate(self, payload: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        """As ``Transport.generate``.

        Raises:
            RuntimeAway: the gate is shut, or was shut while the runtime did not answer.
        """
        if self.shut:
            raise self._away()
        with self._lock:
            self._calls[call] = time.monotonic()
        try:
            reply = self.inner.generate(payload, call, timeout)
            self._note(_sound(reply, call.cancelled))
        except (RuntimeDown, RuntimeTimeout) as error:
            self._note(False)
            self.alarm.set()
            error.retryable = False  # a verifier would rest for up to a minute; the gate rests for it
            if call in self._kicked:
                raise self._away() from error
            raise
        except Cancelled:
            if call in self._kicked:
                raise self._away() from None
            self.unanswered += 1
            raise
        except (RuntimeRefused, BadReply) as error:
            well = _well(error)
            if well is not None:
                self._note(well)
            if well is False:
                error.retryable = False
            raise
        finally:
            with self._lock:
                del self._calls[call]
                kicked = call in self._kicked
                self._kicked.discard(call)
        if kicked:
            raise self._away()
        return reply

    def probe(self, path: str, timeout: float) -> None:
        """Asks whether the runtime is well.

        Raises:
            LookaheadError: it is not.
        """
        try:
            self.inner.get(path, timeout)
        except BadReply:
            return  # in words, not in JSON
        except RuntimeRefused as error:
            if error.status != 404:
                raise

    def try_out(self, timeout: float) -> None:
        """Has it generate a token, whether the gate is shut or not.

        Raises:
            LookaheadError: it does not.
        """
        call, sampling = Call(), {"max_new_tokens": 1, "temperature": 0}
        try:
            reply = self.inner.generate({"input_ids": [1, 2, 3], "sampling_params": sampling}, call, timeout)
        finally:
            call.end(None)
        if not _sound(reply):
            raise BadReply("its answers are no generations", role=self.role)
        self.unanswered, self.answered = 0, time.monotonic()

    def running(self) -> int:
        """Requests that have not been answered."""
        return len(self._calls)

    def oldest(self) -> float:
        """When the oldest of them began; now, if there is none."""
        with self._lock:
            return min(self._calls.values(), default=time.monotonic())

    def kick(self, older: float = 0.0) -> int:
        """Gives up the requests that have taken longer than so many seconds; says how many there were."""
        now = time.monotonic()
        with self._lock:
            stuck = [call for call, began in self._calls.items() if now - began >= older]
            self._kicked.update(stuck)
        for call in stuck:
            call.cancel()
            call.hang_up()  # again each time: the first may have come before there was a connection
        return len(stuck)

    def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        return self.inner.get(path, timeout)

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _note(self, well: bool) -> None:
        if well:
            self.failures, self.unanswered, self.answered = 0, 0, time.monotonic()
        else:
            self.failures += 1

    def _away(self) -> LookaheadError:
        return RuntimeAway(self.shut or "it did not answer in time", role=self.role)


def _well(error: RuntimeRefused | BadReply) -> bool | None:
    """Whether the runtime is well, as far as its refusal tells; None where only a probe can say.

    A runtime that is busy, or that finds a request wrong or too long, answers. A 502 to 504 may also be a router's
    whose workers are gone.
    """
    if isinstance(error, BadReply | WorkerLost):
        return False
    if isinstance(error, PromptTooLong) or 400 <= error.status < 500:
        return True
    return None if isinstance(error, RuntimeBusy) else False


def _sound(reply: Any, aborted: bool = False) -> bool:
    """Whether it is a generation at all, to its end or until we ended it."""
    try:
        finish, ids = reply["meta_info"]["finish_reason"], list(reply["output_ids"])
        kind, matched = finish["type"], finish.get("matched")
    except (KeyError, TypeError, AttributeError):
        return False
    cut = kind == "stop" and isinstance(matched, int) and ids[-1:] != [matched]  # the end of sequence is not there
    return all(isinstance(one, int) and one >= 0 for one in ids) and not cut and (kind != "abort" or aborted)
