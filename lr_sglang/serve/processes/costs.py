"""Lets one process of an endpoint measure what requests cost the target: several would measure each other's load."""

from __future__ import annotations

import asyncio

from lr_sglang.engine import costs
from lr_sglang.engine.costs import Costs
from lr_sglang.engine.transport import Transport
from lr_sglang.serve.processes.board import Board

LOOK_SECONDS = 0.2


async def measure_once(board: Board, transport: Transport, most: int | None) -> Costs | None:
    """As ``costs.measure``, by the first process; the others, and one that is started again, read what it has found.

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
        await asyncio.sleep(LOOK_SECONDS)
        measured, found = board.costs()
    return found
