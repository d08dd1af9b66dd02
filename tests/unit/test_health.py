"""A runtime that is busy is not down, and one whose scheduler hangs is."""

import asyncio
from types import SimpleNamespace

import pytest

from lr_sglang.engine.request import Request
from lr_sglang.errors import RuntimeDown, RuntimeRefused, RuntimeTimeout
from lr_sglang.serve import health
from lr_sglang.serve.health import HANGS, RuntimeAway, Watch
from tests import run_by


class Server:
    """What a runtime answers to polls, on a clock that the test sets."""

    def __init__(self, clock):
        self.clock = clock
        self.batch_at = 1000.0  # the server's own time of day
        self.fault = {}  # by path, the error that is raised

    async def get(self, path, timeout):
        if path in self.fault:
            raise self.fault[path]
        return {"loads": [{"timestamp": self.batch_at}]} if path == "/v1/loads" else {}

    async def generate(self, payload, request, timeout):
        await asyncio.Event().wait()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


async def asking(watch):
    """A request that runs."""
    task = asyncio.create_task(watch.generate({}, Request(), 600.0))
    await asyncio.sleep(0)
    return task


def watching(clock):
    changes = []
    server = Server(clock)
    return server, Watch("target", server, None, lambda role, why: changes.append(why)), changes


async def poll(watch, clock, seconds, server=None, batches=False):
    """Polls for a time, twice a second; the scheduler completes a batch each time, or none."""
    for _ in range(int(2 * seconds)):
        clock.now += 0.5
        if batches:
            server.batch_at += 0.5
        await watch.poll()


@run_by(asyncio.run)
async def test_a_scheduler_that_completes_no_batch_hangs_until_it_goes_on(clock):
    server, watch, changes = watching(clock)
    await poll(watch, clock, 3600)
    assert not changes, "nothing is asked of it"
    task = await asking(watch)
    await poll(watch, clock, 3600, server, batches=True)
    assert not changes, "it writes for an hour"
    await poll(watch, clock, 29)
    assert not changes, "one prompt is long"
    await poll(watch, clock, 5)
    assert changes == [HANGS]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(RuntimeAway):
        await watch.generate({}, Request(), 600.0)
    await poll(watch, clock, 60)
    assert changes == [HANGS], "its HTTP process answers, which is not enough"
    server.batch_at += 1
    await watch.poll()
    assert changes == [HANGS, ""]


@run_by(asyncio.run)
async def test_batches_that_take_long_on_this_machine_have_more_time(clock):
    server, watch, changes = watching(clock)
    task = await asking(watch)
    await poll(watch, clock, 1)
    await poll(watch, clock, 20)
    server.batch_at += 20
    await poll(watch, clock, 75)
    assert not changes, "a batch took 20 s before"
    await poll(watch, clock, 10)
    assert changes == [HANGS]
    task.cancel()


@pytest.mark.parametrize(
    "error",
    [RuntimeRefused("404", role="target"), RuntimeTimeout("late"), RuntimeDown("gone")],
    ids=["another server", "late", "gone"],
)
@run_by(asyncio.run)
async def test_a_server_that_does_not_tell_its_batches_never_hangs(clock, error):
    server, watch, changes = watching(clock)
    server.fault["/v1/loads"] = error
    task = await asking(watch)
    await poll(watch, clock, 600)
    assert not changes
    task.cancel()
