"""Clients that others wrote, against ``lr-sglang serve`` over real SGLang servers: as they are,
nothing changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import yaml
from openai import OpenAI

from tests.e2e.conftest import Pocket
from tests.serving import Process, get, in_flight, serving, until

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
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1


def _reasoning(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or ""


def test_what_is_thought_comes_apart_from_what_is_said(pocket, tmp_path):
    """A model whose template opens the reasoning, as DeepSeek-R1's does: all of it is that until
    </think>.
    """
    with serving(
        tmp_path, pocket.fleet.urls, "--reasoning", "on", "-o", "serve.model=pocket"
    ) as endpoint:
        client = OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(model="pocket", messages=ASKED, temperature=0)
        message, usage = answer.choices[0].message, answer.usage
        assert "52" in _reasoning(message) and not message.content
        assert usage and usage.completion_tokens_details
        assert usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens
        stream = client.chat.completions.create(
            model="pocket", messages=ASKED, temperature=0, stream=True
        )
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
        assert _reasoning(deltas[1]) and not any(delta.content for delta in deltas)


def test_completions_whole_and_in_a_stream(client):
    wish: Any = {"lookahead": {"mode": "autoregressive"}}
    asked: Any = {
        "model": "pocket",
        "prompt": "Sam has 3 pens.",
        "max_tokens": 40,
        "temperature": 0,
    }
    asked["extra_body"] = wish
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion" and whole.choices[0].text
    assert whole.usage and 0 < whole.usage.completion_tokens <= 40
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert (
        "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    )
    assert chunks[-1].usage == whole.usage


def test_max_tokens_and_stop_strings_cut_the_answer(client):
    whole = client.chat.completions.create(model="pocket", messages=ASKED, temperature=0)
    text = whole.choices[0].message.content or ""
    short = client.chat.completions.create(
        model="pocket", messages=ASKED, temperature=0, max_tokens=7
    )
    assert (
        short.choices[0].finish_reason == "length"
        and short.usage
        and short.usage.completion_tokens == 7
    )
    word = text.split()[len(text.split()) // 2]
    for stream in (False, True):
        options: Any = {"stream": stream, "stop": [word, "never written"]}
        answer = client.chat.completions.create(
            model="pocket", messages=ASKED, temperature=0, **options
        )
        parts = answer if stream else [answer]
        said = "".join(_text(part.choices[0]) for part in parts if part.choices)
        assert word not in said
        if not stream:
            assert answer.choices[0].finish_reason == "stop"


def _text(choice: Any) -> str:
    return (choice.delta if hasattr(choice, "delta") else choice.message).content or ""


def test_a_seed_repeats_an_answer(client):
    """On a CPU our own operators draw by the request's seed. Plain decoding: with lookahead time
    decides as well.
    """
    wish: Any = {"lookahead": {"mode": "autoregressive"}}

    def answer(seed: int) -> str:
        made = client.chat.completions.create(
            model="pocket", messages=ASKED, temperature=0.6, seed=seed, extra_body=wish
        )
        return made.choices[0].message.content or ""

    assert answer(11) == answer(11)
    assert len({answer(seed) for seed in (11, 12, 13, 14)}) > 1


def test_a_request_chooses_how_it_is_answered(client):
    # In sync the target waits for the draft: on a busy machine every draft may be late otherwise.
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


TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


def test_what_is_wrong_is_refused_by_name(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="pocket", messages=ASKED, temperature=3)
    error = caught.value
    assert (error.param, error.type) == (
        "temperature",
        "invalid_request_error",
    ) and error.param in error.message


BEYOND: list[dict[str, Any]] = [
    {"n": 9},
    {"logprobs": True, "top_logprobs": 2},
    {"frequency_penalty": 0.5},
    {"tools": [TOOL]},
    {"messages": [*ASKED, {"role": "assistant", "content": "To start,"}]},
]


@pytest.mark.usefixtures("nothing_running")
def test_an_answer_that_has_begun_is_continued_as_the_target_does(client, pocket):
    itself = OpenAI(
        base_url=f"{pocket.fleet.urls['target']}/v1", api_key="none", max_retries=0, timeout=120
    )
    own: Any = {"model": itself.models.list().data[0].id, "temperature": 0, "max_tokens": 60}
    whole = itself.chat.completions.create(**own, messages=ASKED).choices[0].message.content
    begun = [*ASKED, {"role": "assistant", "content": whole[: len(whole) // 3]}]
    direct = itself.chat.completions.create(
        **own, messages=begun, extra_body={"continue_final_message": True}
    )
    more = {"continue_final_message": True, "lookahead": {"verifier": "exact"}}
    through = client.chat.completions.create(
        **{**own, "model": "pocket"}, messages=begun, extra_body=more
    )
    assert through.choices[0].message.content == direct.choices[0].message.content
    assert through.usage.prompt_tokens == direct.usage.prompt_tokens
    assert through.model_extra["lookahead"]["mode"] != "target"


@pytest.mark.usefixtures("nothing_running")
def test_several_answers_to_one_question(client):
    """Greedy ones are the same; each is made by lookahead, and the prompt counts once."""
    asked: Any = {"model": "pocket", "messages": ASKED, "temperature": 0, "max_tokens": 40}
    asked["extra_body"] = {
        "lookahead": {"verifier": "exact"}
    }  # by a judge, words may be the draft's if it is in time
    one, two = client.chat.completions.create(**asked), client.chat.completions.create(**asked, n=2)
    assert {choice.message.content for choice in two.choices} == {one.choices[0].message.content}
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens
    assert two.model_extra["lookahead"]["mode"] != "target"


@pytest.mark.usefixtures("nothing_running")
@pytest.mark.parametrize("more", BEYOND, ids=[next(iter(more)) for more in BEYOND])
def test_what_lookahead_cannot_follow_is_answered_as_by_the_target_itself(more, client, pocket):
    """The same answer as from its own address, at temperature 0, whole and in a stream."""
    asked: Any = {"messages": ASKED, "temperature": 0, "max_tokens": 12, **more}
    itself = OpenAI(
        base_url=f"{pocket.fleet.urls['target']}/v1", api_key="none", max_retries=0, timeout=120
    )
    model = itself.models.list().data[0].id
    direct, through = (
        one.chat.completions.create(**asked, model=name).model_dump()
        for one, name in ((itself, model), (client, "pocket"))
    )
    assert through.pop("lookahead") == {"mode": "target", "why": list(more)}
    changed = {"id", "created", "model"}
    assert {key: through[key] for key in through.keys() - changed} == {
        key: direct[key] for key in direct.keys() - changed
    }
    chunks = list(
        client.chat.completions.create(
            **asked, model="pocket", stream=True, stream_options={"include_usage": True}
        )
    )
    texts = dict.fromkeys(range(more.get("n", 1)), "")
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == [choice["message"]["content"] for choice in direct["choices"]]
    assert chunks[-1].model_extra["lookahead"]["mode"] == "target" and chunks[-1].model == "pocket"


@pytest.mark.usefixtures("nothing_running")
def test_the_targets_other_routes_are_there(client, endpoint, pocket):
    made = client.responses.create(
        model="pocket", input=QUESTION, max_output_tokens=12, temperature=0
    )
    assert made.output_text and made.usage.output_tokens
    headers = {"x-api-key": KEYS["first"]}
    for path, body in (("/v1/messages", {"messages": ASKED, "max_tokens": 12, "temperature": 0}),
                       ("/v1/tokenize", {"prompt": QUESTION}), ("/v1/detokenize", {"tokens": [5, 6]}),
                       ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [5]})):  # fmt: skip
        one = httpx.post(
            endpoint.url + path, json={**body, "model": "pocket"}, headers=headers, timeout=60
        )
        two = httpx.post(
            pocket.fleet.urls["target"] + path, json={**body, "model": "x"}, timeout=60
        )
        assert one.status_code == two.status_code == 200, one.text
        through, direct = one.json(), two.json()
        # batches of other sizes add up in another order
        assert through.pop("scores", [[]])[0] == pytest.approx(
            direct.pop("scores", [[]])[0], rel=1e-3
        )
        assert {**through, "id": 0, "model": 0} == {**direct, "id": 0, "model": 0}
    assert (
        httpx.post(endpoint.url + "/tokenize", json={"prompt": "a"}, timeout=60).status_code == 401
    )
    assert httpx.get(endpoint.url + "/server_info", headers=headers, timeout=60).status_code == 404


def test_a_model_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=ASKED)
    assert caught.value.code == "model_not_found" and "pocket" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_keys_open_and_others_do_not(client, endpoint):
    assert client.with_options(api_key=KEYS["second"]).models.list().data
    for key in ("sk-wrong", KEYS["first"][:-1]):
        with pytest.raises(openai.AuthenticationError) as caught:
            client.with_options(api_key=key).chat.completions.create(model="pocket", messages=ASKED)
        assert caught.value.code == "invalid_api_key" and key not in str(caught.value)
    assert (
        get(f"{endpoint.url}/v1/models").status_code == 401
        and get(f"{endpoint.url}/health").status_code == 200
    )


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
def test_a_client_that_gives_up_leaves_nothing_running(client, pocket):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.15).chat.completions.create(
            model="pocket", messages=LONG, temperature=0
        )
    assert until(lambda: not any(in_flight(pocket.fleet.urls).values()), 5, every=0.02) < 1


@pytest.mark.usefixtures("nothing_running")
def test_a_stream_that_is_cancelled_leaves_nothing_running_and_its_place_is_free(client, pocket):
    for _ in range(PLACES + QUEUE + 1):  # more than there are places
        stream = client.chat.completions.create(
            model="pocket", messages=LONG, temperature=0.6, stream=True
        )
        for chunk in stream:
            if chunk.choices and _text(chunk.choices[0]):
                break
        stream.close()
        assert until(lambda: not any(in_flight(pocket.fleet.urls).values()), 5, every=0.02) < 1
    asked = time.monotonic()
    with client.chat.completions.create(
        model="pocket", messages=ASKED, temperature=0, stream=True
    ) as stream:
        next(iter(stream))
    assert time.monotonic() - asked < 20


def test_the_endpoint_answers_an_async_client(endpoint):
    import asyncio

    async def both() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{endpoint.url}/v1", api_key=KEYS["first"]
        ) as client:
            asked: Any = {"model": "pocket", "messages": ASKED, "temperature": 0}
            made = await asyncio.gather(
                *(client.chat.completions.create(**asked) for _ in range(2))
            )
            return [one.choices[0].finish_reason for one in made]

    assert asyncio.run(both()) == ["stop", "stop"]


# anthropic: its messages go to the target's own route


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


# llm, the command line of another author


@pytest.fixture
def llm(endpoint: Process, tmp_path: Path):
    """Calls it with a configuration of its own, as its documentation says for OpenAI-compatible
    models.
    """
    model = {"model_id": "lookahead", "model_name": "pocket", "api_base": f"{endpoint.url}/v1"}
    model["api_key_name"] = "pocket"
    bad = {**model, "model_id": "wrong", "model_name": "gpt-4o"}
    (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump([model, bad]))
    (tmp_path / "keys.json").write_text(f'{{"pocket": "{KEYS["second"]}"}}')
    environ = {**os.environ, "LLM_USER_PATH": str(tmp_path)}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("llm")), *arguments]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=120, check=False
        )

    return call


def test_llm_answers_whole(llm, client):
    """And in a stream: test_clients.py."""
    same = client.chat.completions.create(model="pocket", messages=ASKED, temperature=0)
    done = llm("prompt", "-m", "lookahead", "-o", "temperature", "0", "--no-stream", QUESTION)
    assert done.returncode == 0, done.stderr
    assert "52" in done.stdout and len(done.stdout) > 0.3 * len(
        same.choices[0].message.content or ""
    )
    logged = llm("logs", "--json", "-n", "1")
    assert '"lookahead"' in logged.stdout and QUESTION in logged.stdout


def test_llm_says_what_was_wrong(llm):
    done = llm("prompt", "-m", "wrong", QUESTION)
    assert done.returncode != 0 and "gpt-4o" in done.stderr
    done = llm("prompt", "-m", "lookahead", "--key", "sk-wrong", QUESTION)
    assert done.returncode != 0 and "API key" in done.stderr
