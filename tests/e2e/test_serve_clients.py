"""Clients that others wrote, against ``lr-sglang serve`` over real SGLang servers: as they are,
nothing changed.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import Pocket
from tests.serving import Process, in_flight, serving, until

QUESTION = (
    "Hats cost 8 dollars each. Lamps cost 2 dollars each. Sam orders 5 hats and 6 "
    "lamps. How many dollars is the bill?"
)
ASKED: Any = [{"role": "user", "content": QUESTION}]
LONG: Any = [
    {"role": "user", "content": QUESTION + " Explain every step again and again, at length."}
]
KEYS = {"first": "sk-first-of-the-keys", "second": "sk-second-of-the-keys"}
PLACES, QUEUE = 2, 1


@pytest.fixture(scope="module")
def endpoint(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    options = (
        "--concurrency",
        PLACES,
        "--queue",
        QUEUE,
        "-o",
        "serve.model=pocket",
        "-o",
        f"serve.max_depth={6}",
    )
    keys = {"LR_SGLANG_API_KEYS": ",".join(KEYS.values())}
    folder = tmp_path_factory.mktemp("serve")
    with serving(folder, pocket.fleet.urls, *options, "--max-tokens", 600, environ=keys) as process:
        yield process
        until(lambda: not any(in_flight(pocket.fleet.urls).values()), 10)
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
    until(lambda: not any(in_flight(pocket.fleet.urls).values()), 5)


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["pocket"]
    assert client.models.retrieve("pocket").object == "model"


@pytest.mark.parametrize("mode", ["lookahead", "autoregressive"])
def test_a_chat_whole_and_in_a_stream_says_the_same(mode, client):
    """At temperature 0 the plain answers of one deployment are the same; with lookahead who is
    first may decide.
    """
    wish: Any = {
        "lookahead": {"mode": mode, "verifier": "exact"} if mode == "lookahead" else {"mode": mode}
    }
    whole = client.chat.completions.create(
        model="pocket", messages=ASKED, temperature=0, extra_body=wish
    )
    (choice,) = whole.choices
    assert choice.finish_reason == "stop" and choice.message.role == "assistant"
    assert "52" in (choice.message.content or "")
    assert (
        whole.usage
        and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    assert whole.model_extra and whole.model_extra["lookahead"]["mode"] == mode
    assert whole.model_extra["lookahead"]["steps"] > 1

    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="pocket",
            messages=ASKED,
            temperature=0,
            stream=True,
            stream_options=options,
            extra_body=wish,
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    thought = "".join(_reasoning(chunk.choices[0].delta) for chunk in chunks if chunk.choices)
    assert (text, thought) == (choice.message.content, _reasoning(choice.message))
    assert [
        c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason
    ] == ["stop"]
    assert (
        len({chunk.id for chunk in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    )
    told = chunks[-1].usage
    assert told and not chunks[-1].choices
    for usage in (told, whole.usage):
        cached = usage.prompt_tokens_details.cached_tokens
        assert 0 <= cached < usage.prompt_tokens
        usage.prompt_tokens_details.cached_tokens = 0  # the second one finds the first one's
    assert told == whole.usage
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1


def _reasoning(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or ""


def test_a_request_chooses_how_it_is_answered(client):
    # The target waits for the draft: on a busy machine every draft may be late otherwise.
    wish: Any = {"lookahead": {"mode": "lossless", "schedule": "sync", "depth": 2, "trace": True}}
    plain: Any = {"lookahead": {"mode": "autoregressive"}}
    asked: Any = {"model": "pocket", "messages": ASKED, "temperature": 0}
    answer = client.chat.completions.create(**asked, extra_body=wish)
    kinds = {event["kind"] for event in answer.model_extra["lookahead"]["trace"]}
    assert {"begun", "drafted", "written", "verified", "ended"} <= kinds
    same = client.chat.completions.create(**asked, extra_body=plain)
    assert answer.choices[0].message.content == same.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="at most 6"):
        client.chat.completions.create(**asked, extra_body={"lookahead": {"depth": 7}})


def test_a_pocket_target_ends_its_json(client):
    """Its server leaves out the white space, which it would write to the limit."""
    number = {"type": "integer", "minimum": 0, "maximum": 999}
    schema: Any = {"type": "object", "properties": {"answer": number}}
    schema |= {"required": ["answer"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    made = client.chat.completions.create(
        model="pocket", messages=ASKED, temperature=0, response_format=form
    )
    (choice,) = made.choices
    assert choice.finish_reason == "stop" and json.loads(choice.message.content).keys() == {
        "answer"
    }


@pytest.mark.usefixtures("nothing_running")
def test_too_many_are_told_when_to_come_again_and_do(client):
    """More at once than there are places and a queue for; the client itself waits as long as it is
    told to.
    """

    def ask(client: OpenAI) -> str:
        try:
            made = client.chat.completions.create(model="pocket", messages=ASKED, temperature=0)
            return made.choices[0].finish_reason
        except openai.RateLimitError as error:
            assert (
                error.type == "rate_limit_error"
                and 1 <= int(error.response.headers["retry-after"]) <= 60
            )
            return "refused"

    many = 2 * (PLACES + QUEUE)
    with ThreadPoolExecutor(many) as threads:
        ends = list(threads.map(ask, [client] * many))
    assert set(ends) == {"stop", "refused"} and ends.count("stop") >= PLACES + QUEUE
    with ThreadPoolExecutor(many) as threads:
        assert (
            list(threads.map(ask, [client.with_options(max_retries=20)] * many)) == ["stop"] * many
        )


@pytest.mark.usefixtures("nothing_running")
def test_a_stream_that_is_cancelled_leaves_nothing_running_and_its_place_is_free(client, pocket):
    for _ in range(PLACES + QUEUE + 1):  # more than there are places
        stream = client.chat.completions.create(
            model="pocket", messages=LONG, temperature=0.6, stream=True
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        stream.close()
        assert until(lambda: not any(in_flight(pocket.fleet.urls).values()), 5, every=0.02) < 1
    asked = time.monotonic()
    with client.chat.completions.create(
        model="pocket", messages=ASKED, temperature=0, stream=True
    ) as stream:
        next(iter(stream))
    assert time.monotonic() - asked < 20


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
