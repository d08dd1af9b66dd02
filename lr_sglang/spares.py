"""Forks of a state that are made while there is time, and used again and again."""

from __future__ import annotations

from collections import deque

from lr_sglang.dsl import backend_of, end, fork
from lr_sglang.sglang_api.interpreter import ProgramState, SglSamplingParams, StreamExecutor


class Spares:
    """Forks that wait for work, and are brought up to date when there is some.

    A fork has a thread, and a thread that starts waits its turn: milliseconds on a busy machine, and nothing else of a
    program can go on meanwhile.

    Args:
        s: what all that is to be forked begins with; it may grow.
        ready: how many to have ready.
        most: how many of those that were in use to keep.
    """

    def __init__(self, s: ProgramState, ready: int, most: int) -> None:
        self._s, self.ready, self.most = s, ready, most
        self._ready: deque[ProgramState] = deque()
        self._lent: set[ProgramState] = set()
        self._executor = s.stream_executor
        self._resolved: dict[int, tuple[SglSamplingParams, SglSamplingParams]] = {}

    def _resolve(self, params: SglSamplingParams) -> SglSamplingParams:
        """As SGLang's, which goes through them anew at every ``gen``: an answer has few, and nobody alters them."""
        found = self._resolved.get(id(params))
        if found is None or found[0] is not params:
            found = self._resolved[id(params)] = params, StreamExecutor._resolve_sampling_params(self._executor, params)
        return found[1]

    def refill(self) -> bool:
        """Makes one; False when there are enough."""
        if len(self._ready) >= self.ready:
            return False
        self._ready.append(self._s.fork(1)[0])
        return True

    def fork(self, s: ProgramState, role: str) -> ProgramState:
        """As ``dsl.fork``, until it is given ``back``."""
        if self._ready:
            lent = self._ready.popleft()
            lent.stream_executor.backend = backend_of(self._s, role)
            lent.stream_executor.sync()  # it may still be putting away what it wrote last
            lent.stream_executor.text_ = s.text()  # all else is the same, and a fork's text is set just so
        else:
            lent = fork(s, role)
        lent.stream_executor._resolve_sampling_params = self._resolve
        self._lent.add(lent)
        return lent

    def back(self, lent: ProgramState, fit: bool) -> None:
        """It has written what it was to write; ``fit`` for more unless it has failed."""
        self._lent.discard(lent)
        if fit and len(self._ready) < self.most:
            self._ready.append(lent)
        else:
            end(lent)

    def end(self) -> None:
        """Lets all go, once they have written, and makes no more."""
        self.ready = self.most = 0
        for state in (*self._ready, *self._lent):
            end(state)
        self._ready.clear()
