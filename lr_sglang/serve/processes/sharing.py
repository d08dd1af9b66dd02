"""How the processes of an endpoint share the slots of its runtimes, and the costs that one process
measures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from lr_sglang.engine import costs
from lr_sglang.engine.costs import Costs
from lr_sglang.engine.transport import Transport
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.processes.board import RUNTIMES, Board, Column

LOOK_SECONDS = 0.05
COSTS_SECONDS = 0.2  # between two looks for the costs
GAUGES = 20  # looks between two updates of the gauges, which cost more


def share(room: int, wanted: Sequence[float], number: int) -> int:
    """Slots that a process may use: what it wants, or an equal part where all want more; and its
    part of the rest.

    Args:
        room: slots in all; at least one for each process.
        wanted: by process.
    """
    given = [1] * len(wanted)
    left = max(0, room - sum(given))
    for at in sorted(range(len(wanted)), key=lambda at: (wanted[at], at)):
        behind = sum(
            1 for other in range(len(wanted)) if (wanted[other], other) >= (wanted[at], at)
        )
        more = min(max(0, int(wanted[at]) - 1), left // behind)
        given[at] += more
        left -= more
    for at in range(left):
        given[at % len(wanted)] += 1
    return given[number]


class Sharing:
    """Updates a process's row on the board and its share of the slots. Belongs to its
    event loop.
    """

    def __init__(
        self,
        board: Board,
        backends: Iterable[RuntimeBackend],
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._board, self._admission, self._metrics = board, admission, metrics
        self._backends = list({backend.pool: backend for backend in backends}.values())[:RUNTIMES]

    async def run(self) -> None:
        """Updates until it is cancelled; returns at once if there is only one process."""
        looks = 0
        while self._board.processes > 1:
            self.look()
            if looks % GAUGES == 0:
                self._metrics.look()
            looks += 1
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Writes what this process uses and takes its share."""
        with self._board.locked():
            self._board.write(Column.SEEN, time.monotonic())
            sizes = [self._claim(2 * at, backend) for at, backend in enumerate(self._backends)]
        for backend, size in zip(self._backends, sizes, strict=True):
            backend.pool.size = size
        self._admission.look()

    def _claim(self, pair: int, backend: RuntimeBackend) -> int | None:
        """Claims free slots of a runtime, at least one: what others claim is theirs until they give
        it back.
        """
        board, pool, room = self._board, backend.pool, backend.room
        if room is None:
            return None
        board.write(Column.WANTED + pair, pool.running + pool.waiting)
        claimed = board.column(Column.CLAIMED + pair)
        free = room - (sum(claimed) - claimed[board.number])
        size = max(1, min(share(room, board.column(Column.WANTED + pair), board.number), int(free)))
        board.write(Column.CLAIMED + pair, max(size, pool.running))
        return size


async def measure_once(board: Board, transport: Transport, most: int | None) -> Costs | None:
    """As ``costs.measure``, but only process 0 measures: several would measure each other's load.

    The other processes, and a restarted one, read its result from the board.

    Raises:
        LookaheadError: the runtime failed, in the first process.
    """
    measured, found = board.costs()
    if not measured and board.number == 0:
        try:
            found = await costs.measure(transport, most)
        finally:
            board.write_costs(found)
        return found
    while not measured:
        await asyncio.sleep(COSTS_SECONDS)
        measured, found = board.costs()
    return found
