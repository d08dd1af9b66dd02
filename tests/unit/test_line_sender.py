"""Messages with lines: one at a time, with all that is new, and none that anybody waits for."""

import asyncio

import pytest

from lr_sglang.engine.slots import REST_SECONDS, LineSender
from lr_sglang.errors import RuntimeDown
from tests import run_by
from tests.simulated.clock import run_virtually

virtually = run_by(run_virtually)


class Server:
    """Takes messages in some seconds each; those whose number is in ``fails`` fail."""

    def __init__(self, seconds=0.01, fails=()):
        self.seconds, self.fails = seconds, fails
        self.messages, self.times = [], []
        self.running = self.most = 0
        self.sender = LineSender(self.deliver)

    async def deliver(self, deliveries):
        number = len(self.messages)
        self.messages.append([tuple(one) for one in deliveries])
        self.times.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        if number in self.fails:
            raise RuntimeDown("gone", role="target")


@virtually
async def test_what_is_new_in_a_turn_is_one_message():
    server = Server()
    server.sender.put("a", 0, [1, 2])
    server.sender.put("b", 5, [9])
    server.sender.put("a", 2, [3])
    server.sender.put("a", 1, [7, 8])  # the line is another from its second token on
    server.sender.put("b", 9, [4])  # a gap: what was before it is of no use
    await asyncio.sleep(1)
    assert server.messages == [[("a", 0, [1, 7, 8]), ("b", 9, [4])]]


@virtually
async def test_no_message_overtakes_another():
    server = Server(seconds=1)
    for place in range(25):
        server.sender.put("a", place, [place])
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    assert server.most == 1 and len(server.messages) == 4
    ids = [id for message in server.messages for _, _, part in message for id in part]
    assert ids == list(range(25))


@virtually
async def test_a_line_whose_request_has_ended_is_not_sent():
    server = Server()
    server.sender.put("a", 0, [1])
    server.sender.put("b", 0, [2])
    server.sender.drop("a")
    await asyncio.sleep(1)
    assert server.messages == [[("b", 0, [2])]]


@pytest.mark.parametrize("fails", [{0}, {0, 1}])
@virtually
async def test_a_server_that_is_gone_for_a_while_gets_what_is_new_when_it_is_back(fails):
    """Nobody waits for it, and it is not asked again at once."""
    server = Server(fails=fails)
    for place in range(60):
        server.sender.put("a", place, [place])
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    assert server.sender.failed == len(fails)
    assert server.messages[-1] == [("a", 59, [59])]
    for number in fails:
        assert server.times[number + 1] - server.times[number] >= REST_SECONDS
    assert server.sender._task is None
