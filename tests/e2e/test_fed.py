"""Token layer `fed`: a server verifies the lines that it is given, and its text stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from lr_sglang import tasks
from lr_sglang.config import TokenLayer
from lr_sglang.engine.loop import call
from lr_sglang.engine.request import Request
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.launching import probe
from lr_sglang.sglang_api.lines import FIELD, FIRST, ROUTE, Line
from tests.e2e.conftest import full

PROBLEM = tasks.load("pocket", limit=1)[0]
TOKENS = 12
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.6, "top_p": 0.95, "sampling_seed": 3}


@pytest.fixture(scope="module", params=["pocket:target", *["pocket:target-hybrid"] * full])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RuntimeBackend]:
    pocket = load_deployment("pocket")
    runtime = pocket.runtimes["target"].replace(
        model=request.param, token_layer=TokenLayer("fed", tokens=TOKENS), max_running_requests=8
    )
    alone = pocket.replace(runtimes={"target": runtime}, shared={})
    with deployed(alone, tmp_path_factory.mktemp("logs"), timeout=280) as roles:
        yield roles["target"]


def state(target: RuntimeBackend) -> dict[str, Any]:
    info = call(target.transport.get("/server_info"), target.loop)
    return probe.state(info)[FIELD]


def written(
    target: RuntimeBackend, sampling: dict[str, Any], line: list[int], way: str
) -> tuple[list[int], int]:
    """The tokens of an answer, and the number of verifications that gave them."""
    params = {"max_new_tokens": 160, **sampling}
    if way == "with it":
        params["custom_params"] = {FIRST: line}
    turn = {"role": "user", "content": PROBLEM.question}
    prompt = list(target.tokenizer.chat([turn], True).ids)
    payload = {"input_ids": prompt, "sampling_params": params, "stream": True}

    async def one() -> dict[str, Any]:
        await target.transport.get("/flush_cache")
        request, told = Request(), 0

        def follow(ids: list[int]) -> None:
            nonlocal told
            if way == "behind it":  # portions of 16, ahead of what is written
                while told < min(len(ids) + 16, len(line)):
                    portion = Line(request.rid, told, line[told : told + 16])
                    told += 16
                    deliveries.append(asyncio.ensure_future(target.transport.deliver([portion])))

        deliveries: list[Any] = []
        request.on_tokens = follow
        reply = await target.transport.generate(payload, request, 60)
        assert not any([await one for one in deliveries])
        return reply

    reply = call(one(), target.loop)
    return reply["output_ids"], reply["meta_info"]["spec_verify_ct"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_line_gives_the_same_text_in_fewer_verifications(
    target: RuntimeBackend, sampling: dict[str, Any]
) -> None:
    before = state(target)
    plain, passes = written(target, sampling, [], "without")
    assert len(plain) > 30
    for way in ("with it", "behind it"):
        ids, fewer = written(target, sampling, plain, way)
        assert ids == plain
        assert fewer <= passes / 3, way
        wrong = [*plain[:20], *(token + 1 for token in plain[20:])]
        assert written(target, sampling, wrong, way)[0] == plain
    after = state(target)
    assert after["failures"] == 0 and after["fed"] > before["fed"]
    assert after["messages"] > before["messages"]


def test_a_target_says_that_it_takes_lines(target: RuntimeBackend) -> None:
    assert target.fed is not None
    assert (target.fed.protocol, target.fed.width, target.fed.draws) == (1, TOKENS + 1, "seeds")
    assert target.fed.shares_draws


def test_lines_that_are_wrong_disturb_nothing(target: RuntimeBackend) -> None:
    many = [Line("nobody", 7, [1, 2]), Line("", 0, [1]), Line("beyond", 0, [10**9])]
    refused = call(target.transport.deliver(many), target.loop)
    assert [rid for rid, _ in refused] == ["", "beyond"]
    plain, _ = written(target, GREEDY, [], "without")
    assert state(target)["failures"] == 0
    for body in ({}, {"lines": [["x", 0]]}, {"lines": [["x", 0, [True]]]}):
        with pytest.raises(Exception, match=ROUTE):
            call(target.transport.post(ROUTE, body), target.loop)
    assert written(target, GREEDY, [], "without")[0] == plain


def test_an_emptied_cache_has_no_lines(target: RuntimeBackend) -> None:
    call(target.transport.deliver([Line("someone", 0, [1, 2, 3])]), target.loop)
    assert state(target)["lines"] > 0
    call(target.transport.get("/flush_cache"), target.loop)
    assert state(target)["lines"] == 0
