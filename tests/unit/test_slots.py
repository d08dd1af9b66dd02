"""The slots of a runtime: who goes first, who may change places, and that none is lost."""

import asyncio
import random

import pytest

from lr_sglang.engine.slots import Slots
from lr_sglang.errors import Cancelled
from lr_sglang.steps.branch import Request
from tests import run_by
from tests.simulated.clock import run_virtually


class Asks:
    """Requests that wait for a pool's slots, and in which order they get them."""

    def __init__(self, pool):
        self.pool, self.entered = pool, []
        self.requests, self.tasks = {}, {}

    async def ask(self, name, order=0):
        self.requests[name] = Request()
        self.tasks[name] = asyncio.create_task(self._enter(name, order))
        await settled()

    async def _enter(self, name, order):
        await self.pool.enter(self.requests[name], order)
        self.entered.append(name)

    async def serve(self):
        """Frees one slot after another, until nobody waits or has one."""
        while self.pool.running:
            self.pool.leave()
            await settled()
        return self.entered


async def settled():
    """All that can happen has happened."""
    for _ in range(5):
        await asyncio.sleep(0)


async def full(size=1):
    """A pool whose slots are all taken."""
    asks = Asks(Slots(size))
    for n in range(size):
        await asks.ask(n)
    asks.entered.clear()
    assert not asks.pool.free() and asks.pool.running == size
    return asks


@run_by(run_virtually)
async def test_the_most_urgent_goes_first_and_equals_in_the_order_of_asking():
    asks = await full()
    for name, order in (("far", 3), ("near", 1), ("front", 0), ("too", 1)):
        await asks.ask(name, order)
    assert asks.pool.waiting == 4 and asks.entered == []
    assert await asks.serve() == ["front", "near", "too", "far"]
    assert asks.pool.waiting == asks.pool.running == 0


@run_by(run_virtually)
async def test_who_asks_later_does_not_overtake_who_waits():
    """A slot that becomes free is the waiting one's, also before that has come to take it."""

    asks = await full()
    await asks.ask("waits")
    asks.pool.leave()
    assert not asks.pool.free()
    await asks.ask("late")
    assert asks.entered == ["waits"]
    assert await asks.serve() == ["waits", "late"]


@run_by(run_virtually)
async def test_what_has_become_urgent_changes_places():
    asks = await full()
    for name, order in (("a", (0, 2)), ("b", (0, 1)), ("c", (0, 3))):
        await asks.ask(name, order)
    asks.pool.reorder(asks.requests["c"], (0, 0))
    asks.pool.reorder(Request(), (0, 0))  # of one that does not wait nothing changes
    assert await asks.serve() == ["c", "b", "a"]
    asks.pool.reorder(asks.requests["c"], (0, 0))  # nor of one that is through
    assert asks.pool.running == asks.pool.waiting == 0 and not asks.pool._heap


@pytest.mark.parametrize("by", ["request", "task"])
@run_by(run_virtually)
async def test_who_is_cancelled_when_its_turn_has_just_come_gives_it_on(by):
    asks = await full()
    await asks.ask("a")
    await asks.ask("b")
    asks.pool.leave()  # it is a's turn, and a has not run yet
    if by == "request":
        asks.requests["a"].cancel()
    else:
        asks.tasks["a"].cancel()
    await settled()
    if by == "task":
        assert asks.entered == ["b"]
    else:  # it has its slot, and whoever sends it finds that it was cancelled
        assert asks.entered == ["a"]
        asks.pool.leave()
        await settled()
        assert asks.entered == ["a", "b"]
    assert asks.pool.running == 1
    asks.pool.leave()
    assert asks.pool.running == 0 and asks.pool.free()


@run_by(run_virtually)
async def test_however_they_come_and_go_no_slot_is_lost():
    """Never more than there are, and never one free while somebody waits."""

    rng, pool, most = random.Random(0), Slots(3), 0
    running, done = set(), []

    async def one(request):
        nonlocal most
        await asyncio.sleep(rng.random())
        await pool.enter(request, (rng.randrange(3),))
        try:
            running.add(request)
            most = max(most, len(running))
            assert len(running) <= 3
            await asyncio.sleep(rng.random() / 10)
            done.append(request)
        finally:
            running.discard(request)
            pool.leave()

    requests = [Request() for _ in range(200)]
    tasks = [asyncio.create_task(one(request)) for request in requests]
    for _ in range(300):
        await asyncio.sleep(rng.random() / 100)
        chosen = rng.randrange(len(requests))
        if rng.random() < 0.3:
            requests[chosen].cancel()
        elif rng.random() < 0.4:
            tasks[chosen].cancel()
        else:
            pool.reorder(requests[chosen], (rng.randrange(3),))
        await settled()
        assert not (pool.free() and pool.waiting)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert pool.running == pool.waiting == 0 and most == 3 and done
    errors = [task.exception() for task in tasks if not task.cancelled() and task.exception()]
    assert all(isinstance(error, Cancelled) for error in errors)
