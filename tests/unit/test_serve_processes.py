"""What the processes of one endpoint share: places, slots, connections and counts. Here they are in
one process.
"""

import asyncio
import errno
import fcntl
import multiprocessing
import os
import random
import socket
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import multiprocess, values

from lr_sglang.engine import costs
from lr_sglang.engine.clock import run_virtually
from lr_sglang.engine.costs import Costs
from lr_sglang.engine.pool import Pool
from lr_sglang.engine.request import Request
from lr_sglang.errors import RuntimeDown, SetupError
from lr_sglang.runtimes.launching.keeper import Patience
from lr_sglang.serve import metrics
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.metrics import Metrics, count_together
from lr_sglang.serve.processes import acceptor, supervisor
from lr_sglang.serve.processes.acceptor import Acceptor
from lr_sglang.serve.processes.board import FRESH_SECONDS, Board, Column
from lr_sglang.serve.processes.sharing import Sharing, measure_once, share
from lr_sglang.serve.processes.supervisor import Supervisor


def boards(folder, processes=2):
    """One for each process, all of which are there."""
    Board.make(folder / "board", processes)
    made = [Board(folder / "board", number, processes) for number in range(processes)]
    for board in made:
        board.write(Column.SEEN, time.monotonic())
    return made


def test_places_and_queue_are_those_of_all_and_first_come_is_first_served(tmp_path):
    async def scene():
        one, other = (Admission(2, 2, board) for board in boards(tmp_path))
        entered = []

        async def enter(admission, name):
            await admission.enter()
            entered.append(name)

        async def settled():
            await asyncio.sleep(0.001)
            one.look()
            other.look()
            await asyncio.sleep(0)

        tasks = []
        for admission, name in ((one, "a"), (other, "b"), (other, "c"), (one, "d")):
            tasks.append(asyncio.create_task(enter(admission, name)))
            await settled()
        assert entered == ["a", "b"] and one.waiting == other.waiting == 1
        for admission in (one, other):
            with pytest.raises(Refusal) as caught:
                await admission.enter()
            assert caught.value.status == 429
        one.leave()
        await settled()
        assert entered == ["a", "b", "c"], (
            "who has waited longest comes next, whoever gave the place back"
        )
        other.leave()
        await settled()
        assert entered == ["a", "b", "c", "d"] and (one.running, other.running) == (1, 1)
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(scene(), 10))


@pytest.mark.parametrize("how", ["dead", "hung"])
def test_a_process_that_is_gone_keeps_nobody_waiting(tmp_path, how):
    async def scene():
        views = boards(tmp_path)
        gone, here = (Admission(1 if how == "dead" else 2, 5, board) for board in views)
        await gone.enter()
        if how == "hung":
            await here.enter()
            turn = asyncio.create_task(gone.enter())
            await asyncio.sleep(0.001)
            here.leave()
        waits = asyncio.create_task(here.enter())
        await asyncio.sleep(0.001)
        assert not waits.done()
        if how == "dead":
            views[1].clear(0)
        else:
            views[0].write(Column.SEEN, time.monotonic() - 2 * FRESH_SECONDS)
        here.look()
        await asyncio.wait_for(waits, 5)
        if how == "hung":
            turn.cancel()

    asyncio.run(asyncio.wait_for(scene(), 10))


def test_a_process_that_was_stopped_with_the_lock_stops_no_other(tmp_path):
    file = tmp_path / "board"
    Board.make(file, 2)
    board, other = Board(file, 0, 2), Board(file, 1, 2)
    with (
        other.locked()
    ):  # and it stays there: a lock of another open file, as another process would have it
        for value in range(1000):
            with board.locked():
                board.write(Column.RUNNING, value)
    assert board.column(Column.RUNNING) == [999.0, 0.0]
    with board.locked(), pytest.raises(BlockingIOError), file.open("r+b") as third:
        fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is locked again


def test_slots_go_to_who_has_use_for_them():
    rng = random.Random(1)
    for _ in range(2000):
        count = rng.randrange(1, 6)
        room, wanted = rng.randrange(1, 64), [rng.randrange(0, 40) for _ in range(count)]
        given = [share(room, wanted, number) for number in range(count)]
        assert sum(given) == max(room, count) and min(given) >= 1
        for got, want in zip(given, wanted, strict=True):
            assert got >= min(want, room // count), "an equal part is nobody else's"
            if got < want:
                assert all(
                    other <= max(got + 1, 1)
                    for other, need in zip(given, wanted, strict=True)
                    if other > need
                )
    assert [share(16, [40, 0], number) for number in (0, 1)] == [15, 1]
    assert [share(16, [40, 40], number) for number in (0, 1)] == [8, 8]
    assert [share(16, [0, 0], number) for number in (0, 1)] == [8, 8]
    assert [share(16, [3, 40], number) for number in (0, 1)] == [3, 13]


def test_the_pool_is_split_by_what_is_in_use_and_never_more_than_it_has(tmp_path):
    """One process has all that there is, until the other needs some: then it gives half back as its
    requests end.
    """
    room = 16

    async def scene():
        pools = [Pool(), Pool()]
        still = SimpleNamespace(look=lambda: None)
        backends = [SimpleNamespace(pool=pool, room=room) for pool in pools]
        processes = [
            Sharing(board, [backend, backend], still, still)
            for board, backend in zip(boards(tmp_path), backends, strict=True)
        ]

        async def looks(times=4):
            for _ in range(times):
                for process in processes:
                    process.look()
                    await asyncio.sleep(0.01)
                    assert sum(pool.running for pool in pools) <= room

        await looks()
        assert [pool.size for pool in pools] == [8, 8]
        tasks = [asyncio.create_task(pools[0].enter(Request())) for _ in range(40)]
        await looks(6)
        assert [pool.size for pool in pools] == [15, 1] and pools[0].running == 15
        tasks += [asyncio.create_task(pools[1].enter(Request())) for _ in range(40)]
        await looks()
        assert pools[1].running == 1, "a process has one slot at least"
        for _ in range(15):
            pools[0].leave()
            await looks(1)
        await looks()
        assert [pool.size for pool in pools] == [pool.running for pool in pools] == [8, 8]
        backends[0].room = backends[1].room = None
        for process in processes:
            process.look()
        assert [pool.size for pool in pools] == [None, None]
        await asyncio.gather(*tasks)

    run_virtually(scene())


def test_the_process_with_the_fewest_connections_takes_the_next(tmp_path):
    """And one that is full takes none while another is not, also one that does not come to it for a
    while.
    """

    async def scene():
        views, taken, clients = boards(tmp_path), [0, 0], []
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)

        def protocol(number):
            taken[number] += 1
            views[number].write(Column.CONNECTIONS, taken[number])
            return asyncio.Protocol()

        async def until_all_are_taken():
            while sum(taken) < len(clients):  # noqa: ASYNC110 - whoever takes one says so to nobody
                await asyncio.sleep(0.001)

        async def connect(all_are_taken=True):
            for view in views:
                view.write(Column.SEEN, time.monotonic())
            clients.append(await asyncio.open_connection(*listening.getsockname()))
            if all_are_taken:
                await until_all_are_taken()

        with (
            closing(listening),
            closing(listening.dup()) as same,
        ):  # a loop has one reader for a file
            first, second = (
                Acceptor(sock, partial(protocol, number), views[number], most=12)
                for number, sock in enumerate((listening, same))
            )
            first.start()
            second.start()
            for _ in range(20):
                await connect()
            assert abs(taken[0] - taken[1]) <= 2
            first.stop()
            while taken[1] < 12:
                await connect()
            await connect(all_are_taken=False)
            await asyncio.sleep(0.2)
            assert taken[1] == 12 and taken[0] < 12
            first.start()
            await until_all_are_taken()
            assert taken[1] == 12
            first.stop()
            second.stop()
            for _, writer in clients:
                writer.close()

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_connection_that_another_process_has_taken_holds_up_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as clients:
        address = listening.getsockname()
        rescue = threading.Timer(
            5, lambda: clients.enter_context(socket.create_connection(address))
        )

        async def scene():
            one = Acceptor(listening, asyncio.Protocol, Board(), most=12)
            one._readable = lambda: asyncio.sleep(
                0
            )  # as it is told of a client of whom the other was told, too
            one.start()
            await asyncio.sleep(0.05)
            one.stop()

        rescue.start()
        asyncio.run(scene())
        assert rescue.is_alive(), "it waited in accept() until a client came"
        rescue.cancel()
        rescue.join()


def test_a_fault_of_the_network_ends_no_acceptor(monkeypatch):
    faults = [errno.EPROTO, errno.EMFILE]

    class Faulty(socket.socket):
        def accept(self):
            if faults:
                raise OSError(faults.pop(), "at first")
            return super().accept()

    async def scene():
        made, told = asyncio.Event(), []
        monkeypatch.setattr(acceptor, "WANT_SECONDS", 0.01)
        monkeypatch.setattr(acceptor, "log", lambda event, level, reason: told.append(reason))
        with Faulty() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            one = Acceptor(listening, lambda: made.set() or asyncio.Protocol(), Board(), most=12)
            one.start()
            _, writer = await asyncio.open_connection(*listening.getsockname())
            await made.wait()
            one.stop()
            writer.close()
        assert told == ["EMFILE", "EPROTO"]

    asyncio.run(asyncio.wait_for(scene(), 10))


class Child:
    """Stands in for a process that a supervisor starts: it ends when it is killed."""

    def __init__(self, **_):
        self.sentinel, self._end = os.pipe()
        self.exitcode, self.kills = None, 0

    def start(self):
        pass

    def kill(self):
        self.kills += 1
        if self.exitcode is None:
            self.exitcode = -9
            os.close(self._end)

    def join(self):
        os.close(self.sentinel)


@pytest.fixture
def supervise(tmp_path, monkeypatch):
    """A supervisor of one such process, which has been up."""

    def make(child):
        context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=child)
        monkeypatch.setattr(multiprocessing, "get_context", lambda how: context)
        made = Supervisor(SimpleNamespace(folder=tmp_path, processes=1), None, None)
        made._starting.clear()
        return made

    return make


def test_a_third_signal_kills_a_process_whose_loop_a_program_holds_up(supervise):
    kills = []

    class HeldUp(Child):
        def start(self):
            for _ in range(3):
                endpoint.end()
                endpoint._loop.call_soon(lambda: kills.append(self.kills))

    endpoint = supervise(HeldUp)
    asyncio.run(asyncio.wait_for(endpoint._run(), 10))
    assert kills == [0, 0, 1]


def test_a_process_that_cannot_be_started_now_is_started_later(supervise, monkeypatch):
    """The system has no memory or no file for it, or has ended the process that it is
    forked from.
    """
    failures, told = [OSError(12, "Cannot allocate memory"), EOFError()], []

    class Late(Child):
        def start(self):
            if failures:
                raise failures.pop()
            endpoint.end()
            self.kill()

    monkeypatch.setattr(supervisor, "PATIENCE", Patience(first=0.01))
    monkeypatch.setattr(
        supervisor, "log", lambda event, level, **about: told.append(about["error"])
    )
    endpoint = supervise(Late)
    asyncio.run(asyncio.wait_for(endpoint._run(), 10))
    assert (
        not failures
        and [error.split(":")[0] for error in told] == ["process 0 cannot be started"] * 2
    )


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Becomes a process of that number; says what it counts with."""
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setenv(metrics._FOLDER, "")

    def become(number):
        count_together(tmp_path, number)
        return Metrics(tmp_path)

    return become


def told(one):
    """What it exposes, without the comments."""
    lines = one.exposed().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_are_those_of_all_processes(process, tmp_path):
    both = []
    for number in (0, 1):
        one = process(number)
        both.append(one)
        one.requests.labels("/v1/models", "200", "").inc(number + 1)
        one.judged.inc(10)
        one.accepted.inc(10 * number)
        one.alpha.set(number)
        one.step.observe(0.3)
        one.watch(one.running, lambda number=number: number + 3)
        one.watch(one.up, lambda number=number: number, role="draft")
        one.watch(one.loop_late, lambda number=number: number / 10)
        one.look()
    for one in both:
        found = told(one)
        assert found['lr_sglang_requests_total{mode="",route="/v1/models",status="200"}'] == "3.0"
        assert found["lr_sglang_alpha"] == "0.5", "of all steps, and not of the last process"
        assert found["lr_sglang_answers_running"] == "7.0"
        assert found['lr_sglang_runtime_up{role="draft"}'] == "0.0"
        assert found["lr_sglang_event_loop_late_seconds"] == "0.1"
        assert found["lr_sglang_step_seconds_count"] == "2.0"
        assert [line for line in found if line.startswith("lr_sglang_build_info")]
    multiprocess.mark_process_dead(1, str(tmp_path))
    found = told(both[0])
    assert (
        found["lr_sglang_answers_running"] == "3.0"
        and found["lr_sglang_steps_judged_total"] == "20.0"
    )
    again = process(1)
    again.judged.inc(5)
    assert told(again)["lr_sglang_steps_judged_total"] == "25.0", (
        "it goes on where the one before it was"
    )


def test_what_is_counted_has_room_on_the_disk_from_the_start(process, tmp_path):
    """A process that writes where a file is mapped, and the disk is full, is ended by the system
    (SIGBUS).
    """
    one = process(0)
    one.requests.labels("/v1/models", "200", "").inc()
    one.watch(one.up, lambda: 1, role="draft")
    files = [file.stat() for file in tmp_path.glob("*_0.db")]
    assert len(files) == 5 and all(file.st_blocks * 512 >= file.st_size >= 2**16 for file in files)
    with pytest.raises(SetupError, match="metrics cannot be kept there: No such file"):
        count_together(tmp_path / "away", 0)


def test_every_gauge_says_how_it_is_added_up():
    gauges = [one for one in Metrics().registry._collector_to_names if one._type == "gauge"]
    assert gauges and all(one._multiprocess_mode.startswith("live") for one in gauges)


@pytest.mark.parametrize("found", [Costs(0.02, 0.1, 0.005), None, RuntimeDown("gone")])
def test_one_process_measures_the_costs_of_requests_and_all_have_them(tmp_path, monkeypatch, found):
    measured = []

    async def measure(transport, most):
        measured.append((transport, most))
        await asyncio.sleep(3)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(costs, "measure", measure)

    async def scene():
        first, *others = boards(tmp_path, 3)
        first.clear(1)
        waiting = [asyncio.create_task(measure_once(board, "target", 8)) for board in others]
        if isinstance(found, Exception):
            with pytest.raises(RuntimeDown):
                await measure_once(first, "target", 8)
        else:
            assert await measure_once(first, "target", 8) == found
        known = None if isinstance(found, Exception) else found
        assert await asyncio.gather(*waiting) == [known, known]
        first.clear(0)
        again = Board(tmp_path / "board", 0, 3)  # one that is started in its place
        assert await measure_once(again, "target", 8) == known
        assert measured == [("target", 8)]
        assert all(len(board.column(Column.RUNNING)) == 3 for board in (first, *others))

    run_virtually(scene())
