"""Tests. With LR_SGLANG_FULL=1 (make test-full) properties are tried on more examples, and every
case of a grid.
"""

import asyncio
import functools
import importlib.util
import itertools
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from lr_sglang.tasks.question import Question, Work

FULL = os.environ.get("LR_SGLANG_FULL") == "1"
ROOT = Path(__file__).parents[1]
SCHEDULES = ("async", "sync")


def examples(few: int) -> int:
    """``few``, or ten times as many in the full run."""
    return few * 10 if FULL else few


def grid(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every combination of the values of some parameters, one of which has three or more values; in
    a short run a third of them, in which every value occurs.
    """
    values = [list(axis) for axis in axes]
    places = itertools.product(*(range(len(axis)) for axis in values))
    chosen = [place for place in places if FULL or sum(place) % 3 == 0]
    assert [len({place[n] for place in chosen}) for n in range(len(values))] == [
        len(axis) for axis in values
    ]
    return [
        tuple(axis[number] for axis, number in zip(values, place, strict=True)) for place in chosen
    ]


def loaded(file: Path) -> ModuleType:
    """The module in a file that is in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(questions: Sequence[Question], modes: Sequence[str], samples: int = 1) -> list[Work]:
    """The samples, all modes in turn for each question."""
    return [
        Work(question, sample, mode)
        for question in questions
        for sample in range(samples)
        for mode in modes
    ]


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, or of all runs in a folder; a last line without its end is left out."""
    files = sorted(folder.rglob("records.jsonl"))
    lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line) for line in lines]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """Runs it in a thread; gives the thread, and what it has raised when that has ended."""
    raised: list[Exception] = []

    def go() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever asked looks at it
            raised.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, raised


@contextmanager
def looping() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def fixture_of(opened: Callable[[], AbstractContextManager[Any]], scope: str = "module") -> Any:
    """A fixture: what a context manager gives, open for all tests of a module or for one."""
    import pytest  # which simulated servers, that import this package too, do without

    @pytest.fixture(scope=scope)  # type: ignore[call-overload]
    def given() -> Iterator[Any]:
        with opened() as one:
            yield one

    return given


Test = Callable[..., Coroutine[Any, Any, None]]


def run_by(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> Callable[[Test], Callable[..., None]]:
    """Makes a test of a coroutine function, whose coroutine ``run`` runs."""

    def made(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def whole(*given: Any, **named: Any) -> None:
            run(test(*given, **named))

        return whole

    return made
