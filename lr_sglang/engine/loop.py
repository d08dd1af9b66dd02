"""The process's event loop: it runs in its own thread; other threads submit coroutines to it and
wait.
"""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from lr_sglang.errors import ConfigError

T = TypeVar("T")
# Maximum wait for a cancelled coroutine: a user's code may ignore the cancellation.
STOP_SECONDS = 5.0
# Python handles a signal that came right before a wait, or to another thread, only after the wait.
WAKE_SECONDS = 0.5
running_loop = asyncio._get_running_loop  # the loop that runs in this thread, or None
_lock = threading.Lock()
# By process id: a forked process has no such thread.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def background(selector: selectors.BaseSelector | None = None) -> asyncio.AbstractEventLoop:
    """The loop, started at the first call. It ends with the process.

    Args:
        selector: of the loop, if this call starts it. The default one may wake up a millisecond
            late.
    """
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = (
                asyncio.new_event_loop()
                if selector is None
                else asyncio.SelectorEventLoop(selector)
            )
            _loops[os.getpid()] = loop
            threading.Thread(target=_run, args=(loop,), name="lr-loop", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop for ever: ``sys.exit`` in a task is the result of that task and does not stop
    the loop.
    """
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


@cache
def keep_what_is_imported() -> None:
    """Excludes all current objects from garbage collection, and makes collections rarer.

    SGLang brings a million objects; a collection of them stops every answer for half a second. An
    answer leaves no cycles, and with Python's own threshold a busy process spent a third of its
    time collecting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def call(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Runs a coroutine on the loop and waits for its result. Call it in another thread.

    An exception in the waiting thread, such as Ctrl-C, cancels the coroutine and waits up to
    STOP_SECONDS for its end.

    Raises:
        ConfigError: it was called on the loop itself.
    """
    loop = loop or background()
    if running_loop() is loop:
        work.close()
        raise ConfigError(
            "the event loop cannot wait for itself", hint="await the asynchronous function instead"
        )
    ended = threading.Event()
    made = list[asyncio.Task[T]]()
    try:
        _start(made, work, loop, lambda _: ended.set())
        while not ended.wait(WAKE_SECONDS):
            pass
    except BaseException:
        loop.call_soon_threadsafe(_cancel, made)
        ended.wait(STOP_SECONDS)
        raise
    return made[0].result()


def _start(
    made: list[asyncio.Task[T]],
    work: Coroutine[Any, Any, T],
    loop: asyncio.AbstractEventLoop,
    ended: Callable[[asyncio.Task[T]], None],
) -> None:
    """Starts a task on a loop of another thread, and puts it into the list once it is made."""

    def start() -> None:
        made.append(loop.create_task(work))
        made[0].add_done_callback(ended)

    loop.call_soon_threadsafe(start)


def _cancel(made: list[asyncio.Task[T]]) -> None:
    for task in made:  # none, if the interruption came before it was made
        task.cancel()


async def elsewhere(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Awaits a coroutine on ``loop``, which may be another loop. If cancelled, waits until the
    coroutine has ended.
    """
    here = asyncio.get_running_loop()
    if here is loop:
        return await work
    ended: asyncio.Future[None] = here.create_future()

    def end(task: asyncio.Task[T]) -> None:
        with suppress(RuntimeError):  # the waiting loop is closed
            here.call_soon_threadsafe(ended.set_result, None)

    made = list[asyncio.Task[T]]()
    _start(made, work, loop, end)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(_cancel, made)
        await asyncio.shield(ended)
        raise
    return made[0].result()


async def in_thread(work: Callable[[], T]) -> T:
    """Runs a function in a new thread and awaits its result. Cancelling does not end the
    function.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task; futures refuse StopIteration
            done.set_exception(
                RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            )

    threading.Thread(target=run, name="lr-program", daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(done))
