"""Empties the caches of runtimes between the turns of a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from lr_sglang.errors import LookaheadError, RuntimeDown

FLUSH_SECONDS = 5.0  # a server empties its cache only when it has nothing to do


class Caches:
    """Empties the caches of runtimes, so that no variant finds what another one left there."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.kept: set[str] = set()  # roles whose cache could not be emptied

    def empty(self, roles: Mapping[str, Any]) -> None:
        """Those of the runtimes that the next variant uses.

        Raises:
            RuntimeDown: the target is gone.
        """
        for role, backend in roles.items():
            try:
                self._one(role, backend)
            except RuntimeDown:
                if role == "target":
                    raise  # without the others answers go on
            except LookaheadError as error:
                if role not in self.kept:
                    self.kept.add(role)
                    self.warn(f"{role}: its cache is not emptied between modes ({error.message})")

    def _one(self, role: str, backend: Any) -> None:
        deadline = time.monotonic() + (0.0 if role in self.kept else FLUSH_SECONDS)
        while True:
            try:
                backend.flush_cache()
                return
            except RuntimeDown:
                raise
            except LookaheadError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
