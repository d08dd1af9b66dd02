"""Clients that others wrote, against ``lr-sglang serve`` over real SGLang servers: as they are,
nothing changed.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import Pocket
from tests.processes.mortal import metric
from tests.serving import Process, serving, until, until_idle

QUESTION = (
    "Hats cost 8 dollars each. Lamps cost 2 dollars each. Sam orders 5 hats and 6 "
    "lamps. How many dollars is the bill?"
)
ASKED: Any = [{"role": "user", "content": QUESTION}]
KEYS = {"first": "sk-first-of-the-keys", "second": "sk-second-of-the-keys"}
PLACES, QUEUE = 2, 1


@pytest.fixture(scope="module")
def endpoint(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    options = ("--concurrency", PLACES, "--queue", QUEUE, "-o", "serve.model=pocket")
    keys = {"LR_SGLANG_API_KEYS": ",".join(KEYS.values())}
    folder = tmp_path_factory.mktemp("serve")
    with serving(
        folder, pocket.fleet.urls, *options, "--max-tokens", 3500, environ=keys
    ) as process:
        yield process
        until_idle(pocket.fleet.urls)
        assert process.stop() == 0
        assert (
            not [key for key in KEYS.values() if key in process.said] and "Hats" not in process.said
        )
        assert "Traceback" not in process.said


@pytest.fixture
def client(endpoint: Process) -> OpenAI:
    return OpenAI(base_url=f"{endpoint.url}/v1", api_key=KEYS["first"], max_retries=0, timeout=120)


@pytest.fixture
def nothing_running(pocket: Pocket) -> Iterator[None]:
    yield
    until_idle(pocket.fleet.urls)


@pytest.mark.usefixtures("nothing_running")
def test_too_many_are_told_when_to_come_again_and_do(client, endpoint):
    """Streams that do not end by themselves have all places until they are closed; the client itself
    waits as long as it is told to.
    """

    def ask(client: OpenAI) -> str:
        made = client.chat.completions.create(model="pocket", messages=ASKED, temperature=0)
        return made.choices[0].finish_reason

    waiting = lambda: metric(endpoint.url, "requests_waiting", key=KEYS["first"])
    endless: Any = {"ignore_eos": True}
    many = 2 * (PLACES + QUEUE)
    with ThreadPoolExecutor(many) as threads, ExitStack() as streams:
        for _ in range(PLACES):
            stream = client.chat.completions.create(
                model="pocket", messages=ASKED, stream=True, extra_body=endless
            )
            next(iter(streams.enter_context(stream)))
        queued = [threads.submit(ask, client) for _ in range(QUEUE)]
        until(lambda: waiting() == QUEUE, 30)
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client)
        assert refused.value.type == "rate_limit_error"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
        streams.close()
        assert [one.result() for one in queued] == ["stop"] * QUEUE
        patient = client.with_options(max_retries=20)
        assert list(threads.map(ask, [patient] * many)) == ["stop"] * many
    assert endpoint.disconnected() == PLACES


@pytest.mark.usefixtures("nothing_running")
def test_anthropics_client_is_answered_whole_and_in_a_stream(endpoint):
    asked: Any = {
        "model": "pocket",
        "messages": ASKED,
        "max_tokens": 200,
        "extra_body": {"temperature": 0},
    }
    with anthropic.Anthropic(
        base_url=endpoint.url, api_key=KEYS["first"], max_retries=0, timeout=120
    ) as client:
        whole = client.messages.create(**asked)
        (block,) = whole.content
        assert whole.stop_reason == "end_turn" and whole.model == "pocket" and "52" in block.text
        with client.messages.stream(**asked) as stream:
            texts = list(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(texts) == block.text and len(texts) > 1
        assert (final.stop_reason, final.usage.output_tokens) == (
            whole.stop_reason,
            whole.usage.output_tokens,
        )
        counted = client.messages.count_tokens(model="pocket", messages=ASKED)
        assert counted.input_tokens == whole.usage.input_tokens
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="sk-wrong").messages.create(**asked)
