"""What follows a judged thinking is what a plain request after the same text and seed writes:
answers of the endpoint, on real servers in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from lr_sglang import tasks
from lr_sglang.config import Limits, Lookahead
from lr_sglang.runtimes.connect import connected
from lr_sglang.serve.settings import Service
from lr_sglang.sglang_api.plugin_protocol import with_seed
from lr_sglang.steps.trace import Trace
from tests import FULL
from tests.e2e.conftest import Stand
from tests.endpoint import CHAT, Endpoint, serving
from tests.serving import HTTP, until_idle
from tools.pocket.thinking import TOOLS

PROBLEMS = tasks.load("pocket", limit=40 if FULL else 3)
MOST = 400
SEED = 7
SERVICE = Service(
    modes=("lookahead+sd",),
    verifiers=("random:0.8",),
    lookahead=Lookahead(depth=4),
    limits=Limits(max_tokens=MOST),
    concurrency=8,
    stop_in_thinking=False,
)
# The pocket models think for 40 to 100 tokens, and conclude with "The answer is \\boxed{5}.".
WAYS: dict[str, list[dict[str, Any]]] = {
    "two answers": [{"n": 2}],
    "a stop string": [{"stop": ["boxed", "no such text"]}],
    # in sync no draft is late, so that a step is judged before the budget ends
    "a budget": [
        {"max_tokens": most, "lookahead": {"schedule": "sync"}} for most in (55, 75, 10, 90)
    ],
    "tools": [{"tools": TOOLS}],
}


class Said(NamedTuple):
    """An answer: what its client got, and how it was made."""

    asked: dict[str, Any]
    choice: dict[str, Any]
    trace: Trace


@pytest.fixture(scope="module")
def endpoint(thinking: Stand) -> Iterator[tuple[Endpoint, dict[int, Trace]]]:
    """An endpoint whose verifier accepts four of five drafted steps, whatever they say; and the
    traces of its answers.
    """
    made: dict[int, Trace] = {}
    with connected(thinking.fleet) as roles, serving(roles, SERVICE) as one:
        make = one.engine.requests.make

        def kept(mode: Any, look: Any, sampling: Any, *given: Any, **more: Any) -> Any:
            job = make(mode, look, sampling, *given, **more)
            made.setdefault(sampling.seed, job.trace)  # a program's generations have their own
            return job

        one.engine.requests.make = kept
        yield one, made


def said(endpoint: tuple[Endpoint, dict[int, Trace]], asked: dict[str, Any]) -> list[Said]:
    """The answers to a request, whose seed no other request has."""
    one, traces = endpoint
    reply = HTTP.post(one.url + CHAT, json=asked, timeout=300)
    assert reply.status_code == 200, reply.text
    seeds = range(asked["seed"], asked["seed"] + asked.get("n", 1))
    choices = sorted(reply.json()["choices"], key=lambda choice: choice["index"])
    return [Said(asked, one, traces.pop(seed)) for one, seed in zip(choices, seeds, strict=True)]


def plain(url: str, answer: Said, begun: int, seed: int, place: int) -> dict[str, Any]:
    """What the target writes after the answer's first tokens when it is asked with a seed."""
    asked, ids = answer.asked, answer.trace.ids
    rendered = {name: asked[name] for name in ("messages", "tools") if name in asked}
    prompt = HTTP.post(f"{url}/tokenize", json=rendered, timeout=60).json()["tokens"]
    params = {
        "temperature": asked["temperature"],
        "top_p": SERVICE.sampling.top_p,
        "max_new_tokens": asked.get("max_tokens", MOST) - begun,
        "stop": asked.get("stop", []),
    }
    body = {
        "input_ids": [*prompt, *ids[:begun]],
        "sampling_params": with_seed(params, seed, place),
    }
    reply: dict[str, Any] = HTTP.post(f"{url}/generate", json=body, timeout=300).json()
    return reply


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_conclusion_is_a_plain_requests_with_its_seed(
    thinking: Stand,
    endpoint: tuple[Endpoint, dict[int, Trace]],
    temperature: float,
    way: str,
) -> None:
    url = thinking.fleet.urls["target"]
    requests = [
        {
            "model": SERVICE.model,
            "messages": [{"role": "user", "content": problem.question}],
            "temperature": temperature,
            "seed": SEED + 2 * number,
            **WAYS[way][number % len(WAYS[way])],
        }
        for number, problem in enumerate(PROBLEMS)
    ]

    def compared(answer: Said) -> bool:
        """Whether the answer has a conclusion, which is the target's."""
        trace, message = answer.trace, answer.choice["message"]
        if "target" in trace.program.get("answered", ()):  # it goes on alone, to call tools
            begun = place = trace.branches[-1].place
            seed = answer.asked["seed"]
        elif not trace.conclusion:  # a budget, or the model, has ended it in its thinking
            spent = len(trace.ids) == answer.asked.get("max_tokens", MOST)
            assert not message["content"]
            assert spent or (trace.finish == "stop" and "</think>" not in trace.text)
            return False
        else:
            begun, place = trace.conclusion["tokens"], 0
            seed = trace.conclusion["seed"]
            assert trace.conclusion["text"] == "text"
        reply = plain(url, answer, begun, seed, place)
        ids = list(trace.ids[begun:])
        if isinstance(
            answer.choice["matched_stop"], str
        ):  # which may be in a step that is not kept
            reply["output_ids"] = reply["output_ids"][: len(ids)]
        assert ids[: len(reply["output_ids"])] == reply["output_ids"]
        finish = reply["meta_info"]["finish_reason"]["type"]
        called = bool(message.get("tool_calls"))
        assert answer.choice["finish_reason"] == ("tool_calls" if called else finish)
        if way != "tools":
            assert message["content"].strip() == reply["text"].strip()
        return True

    with ThreadPoolExecutor(8) as pool:
        answers = [
            one for each in pool.map(lambda asked: said(endpoint, asked), requests) for one in each
        ]
        concluded = sum(pool.map(compared, answers))
    # some budgets end inside the thinking
    assert len(answers) / 4 <= concluded <= len(answers) - (way == "a budget")
    assert any(answer.trace.tokens()["judged"] for answer in answers)
    until_idle(thinking.fleet.urls)
