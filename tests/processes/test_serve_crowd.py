"""A crowd at the endpoint, far more at once than it has places and a queue for: each gets its own
right answer or is told when to come again, and nothing is left behind. A hundred ask, or four
hundred with LR_SGLANG_FULL=1, over simulated runtimes in processes of their own.
"""

from pathlib import Path

import psutil
import pytest

from lr_sglang.cli.serve import _allow_files
from lr_sglang.config import ROLES
from lr_sglang.serve.app import PROMPT_THREADS
from tests import FULL
from tests.processes.mortal import MODEL, Client, metric, mortals
from tests.serving import Truth, serving, until
from tests.simulated.model import Model

STEPS, STEP_SECONDS, JUDGE_SECONDS = 2, 0.6, 0.1
CROWD = 400 if FULL else 100
PLACES, QUEUE, LEAVERS = CROWD // 4, CROWD // 4, CROWD // 10
TURNS = 4 if FULL else 2
LIBUV_THREADS = 4  # uvloop's, all made when the first address is looked up
MEMORY = 64 * 2**20  # bytes that the last turn may take more than the first: records of reuse
PATIENCE = 240.0  # seconds until an answer has begun, or has ended, on a busy machine
TRUTH = Truth(Model(steps=STEPS))
WISHES = ({}, {"depth": 1}, {"mode": "autoregressive"}, {"schedule": "sync"})


def crowd(url: str, turn: int) -> list[Client]:
    """All of one turn, with what became of them. Every fourth is not streamed; the first leave when
    they have heard something.
    """
    come = [
        Client(
            url,
            f"What is {turn} + {number}?",
            stream=number % 4 != 3,
            more={"lookahead": WISHES[number % len(WISHES)]},
        )
        for number in range(CROWD)
    ]
    for client in come[:LEAVERS]:
        assert client.begun.wait(PATIENCE)
        client.close_connection()
    return [client.end(PATIENCE) for client in come]


def check(come: list[Client]) -> int:
    """Whether each has what it may have; how many were sent away, which on a machine that lets them
    come one by one may be nobody.
    """
    for client in come[:LEAVERS]:
        assert not TRUTH.wrong(client.question, client.text, whole=False), client
    refused = [client for client in come[LEAVERS:] if client.status == 429]
    for client in refused:
        assert client.error["code"] == "queue_full" and not client.text
        assert 1 <= int(client.headers["retry-after"]) <= 60
    answered = [client for client in come[LEAVERS:] if client not in refused]
    for client in answered:
        assert (client.status, client.finish, client.broken) == (200, "stop", ""), client
        assert not TRUTH.wrong(client.question, client.text), client
        assert client.about["steps"] == STEPS
        if client.about["mode"] == "autoregressive":
            assert client.text == TRUTH.plain(client.question)
    assert {client.about["mode"] for client in answered} == {"lookahead", "autoregressive"}
    assert len(refused) <= CROWD - PLACES - QUEUE, "only whom there was no room for"
    return sum(client.status == 429 for client in come)


@pytest.mark.timeout(900)
def test_a_crowd_is_answered_or_told_to_come_again_and_leaves_nothing(tmp_path: Path) -> None:
    _allow_files()  # as many for the runtimes and the clients, too
    speed = ("--step-seconds", str(STEP_SECONDS), "--judge-seconds", str(JUDGE_SECONDS))
    places = ("--concurrency", PLACES, "--queue", QUEUE, "-o", f"serve.model={MODEL}")
    modes = ("--depth", 2, "--mode", "lookahead", "--mode", "autoregressive")
    with mortals(tmp_path, "--steps", str(STEPS), *speed) as runtimes:
        urls = {role: runtime.url for role, runtime in runtimes.items()}
        with serving(tmp_path, urls, *places, *modes) as endpoint:
            process = psutil.Process(endpoint.pid)
            threads = process.num_threads()
            files = process.num_fds()
            memory = list[int]()
            sent_away = 0
            for turn in range(TURNS):
                sent_away += check(crowd(endpoint.url, turn))
                until(lambda: not any(one.running() for one in runtimes.values()), 10)
                for gauge in ("answers_running", "requests_waiting"):
                    assert metric(endpoint.url, gauge) == 0
                for role in ROLES:
                    assert metric(endpoint.url, "branches_running", role=role) == 0
                memory.append(process.memory_info().rss)
            assert metric(endpoint.url, "disconnects_total") > 0
            assert metric(endpoint.url, "rejected_total", reason="queue_full") == sent_away
            assert process.num_threads() <= threads + PROMPT_THREADS + LIBUV_THREADS
            assert memory[-1] - memory[0] <= MEMORY, memory
            # the last connections to the runtimes are kept for some seconds
            until(lambda: process.num_fds() <= files + 24, PATIENCE)
            assert not [line for line in endpoint.log if line["level"] == "error"], endpoint.said
            # on a busy machine the draft's poll may be late, and then the log says so
            away = [line for line in endpoint.log if line["event"] == "runtime down"]
            assert away or metric(endpoint.url, "degraded_requests_total") == 0
