"""The process's event loop, seen from other threads and other loops."""

import asyncio
import signal
import threading

import pytest

from lr_sglang.engine.loop import background, call, elsewhere, in_thread
from lr_sglang.errors import ConfigError
from tests import fixture_of, looping, run_by
from tests import in_thread as in_thread_of_its_own


class Work:
    """A coroutine that waits for ever, and takes a while to end when it is cancelled."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    async def run(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0.001)
            self.ended.set()


async def value(found):
    await asyncio.sleep(0)
    return found


async def fails():
    raise ZeroDivisionError("a bug")


another = fixture_of(looping, "function")


# -- from a thread


def test_a_thread_gets_what_a_coroutine_returns_or_raises(another):
    assert call(value(3)) == 3
    assert call(value(4), another) == 4
    with pytest.raises(ZeroDivisionError):
        call(fails())


def test_the_loop_cannot_wait_for_itself():
    async def waits():
        call(value(1))

    with pytest.raises(ConfigError, match=r"cannot wait for itself.*\nHint: .*await"):
        call(waits())


@pytest.mark.parametrize("waits", [True, False], ids=["who waits", "another thread"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_cancels_the_work_and_waits_until_it_has_ended(interrupt, waits):
    """Also where the thread that waits is not woken by the signal."""
    work, main = Work(), threading.get_ident()

    def interrupts(*_):
        raise interrupt

    def signals():
        assert work.begun.wait(60)
        signal.pthread_kill(main if waits else threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupts)
    thread, raised = in_thread_of_its_own(signals)
    try:
        with pytest.raises(interrupt):
            call(work.run())
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert work.ended.is_set() and not raised, "nothing is left running"


# -- from another loop


@run_by(asyncio.run)
async def test_another_loop_gets_what_a_coroutine_returns_or_raises(another):
    assert await elsewhere(value(1), asyncio.get_running_loop()) == 1
    assert await elsewhere(value(2), another) == 2
    with pytest.raises(ZeroDivisionError):
        await elsewhere(fails(), another)


@run_by(asyncio.run)
async def test_cancelling_who_waits_on_another_loop_waits_until_the_work_has_ended():
    work = Work()

    waiting = asyncio.create_task(elsewhere(work.run(), background()))
    await asyncio.to_thread(work.begun.wait, 5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.ended.is_set()


# -- a thread for what blocks


@run_by(asyncio.run)
async def test_a_function_runs_in_a_thread_while_the_loop_goes_on():
    goes_on = threading.Event()

    loop_thread = threading.get_ident()
    waiting = asyncio.create_task(in_thread(lambda: (goes_on.wait(5), threading.get_ident())))
    await asyncio.sleep(0)
    goes_on.set()
    met, other = await waiting
    assert met and other != loop_thread
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: next(iter(())))
