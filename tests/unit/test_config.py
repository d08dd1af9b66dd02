"""Configuration says no, early and helpfully."""

import json
import re
import tomllib

import numpy as np
import pytest

from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling
from lr_sglang.errors import ConfigError


def deployment(text: str) -> Deployment:
    return Deployment.from_dict(tomllib.loads(text), "deployment")


def test_a_deployment_is_read_from_toml_and_written_back():
    read = deployment(
        """
        name = "three"
        [runtimes.target]
        model = "a"
        gpus = [0, 1]
        timeout = 30
        extra = {enable_x = true}
        [runtimes.draft]
        url = "http://127.0.0.1:1"
        [shared]
        judge = "target"
        [lookahead]
        depth = 3
        [sampling]
        temperature = 1
        """
    )
    assert read.runtimes["target"].gpus == (0, 1)
    assert type(read.runtimes["target"].timeout) is float
    assert type(read.sampling.temperature) is float
    assert read.runtime("judge") is read.runtimes["target"]
    assert read.lookahead == Lookahead(depth=3)
    assert Deployment.from_dict(json.loads(json.dumps(read.to_dict()))) == read


@pytest.mark.parametrize(
    ("table", "hint"),
    [({"dept": 1}, "depth?"), ({"qwertz": 1}, "half_sentence_guard")],
    ids=["near", "far"],
)
def test_an_unknown_key_is_refused_with_help(table, hint):
    with pytest.raises(ConfigError, match="unknown key") as caught:
        Lookahead.from_dict(table)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "table", "said"),
    [
        (Lookahead, {"depth": "6"}, "lookahead.depth: expected a whole number, got '6'"),
        (Lookahead, {"depth": True}, "expected a whole number"),
        (Lookahead, {"depth": 2.0}, "expected a whole number"),
        (Lookahead, {"half_sentence_guard": 1}, "expected true or false"),
        (Lookahead, {"schedule": "later"}, "not one of async, sync"),
        (Sampling, {"temperature": True}, "expected a number"),
        (Sampling, {"temperature": None}, "expected a number"),
        (Runtime, {"model": "a", "gpus": "0"}, "expected a list"),
        (Runtime, {"model": "a", "gpus": ["0"]}, "expected a whole number"),
        (Runtime, {"model": "a", "extra": 3}, "expected a table"),
        (
            Deployment,
            {"name": "x", "runtimes": {"target": "a"}},
            "runtimes.target: expected a table",
        ),
        (
            Deployment,
            {"name": "x", "runtimes": {"target": {"model": "a", "prot": 1}}},
            "unknown key 'prot'",
        ),
        (Deployment, {"runtimes": {}}, "missing name"),
        (Deployment, {}, "missing name, runtimes"),
    ],
)
def test_a_wrong_type_is_refused_by_name(kind, table, said):
    with pytest.raises(ConfigError, match=said):
        kind.from_dict(table)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lookahead(depth=0),
        lambda: Lookahead(depth=65),
        lambda: Lookahead(width=0),
        lambda: Lookahead(width=17),
        lambda: Lookahead(max_step_tokens=0),
        lambda: Lookahead(width=4, depth=10),
        lambda: Sampling(temperature=-0.1),
        lambda: Sampling(temperature=float("nan")),
        lambda: Sampling(temperature=float("inf")),
        lambda: Sampling(top_p=0.0),
        lambda: Sampling(top_p=1.1),
        lambda: Sampling(top_k=0),
        lambda: Sampling(top_k=2**31),
        lambda: Sampling(min_p=2.0),
        lambda: Limits(max_tokens=0),
        lambda: Limits(max_total_tokens=-1),
        lambda: Runtime(),
        lambda: Runtime(model="a", url="http://b"),
        lambda: Runtime(url="b:80"),
        lambda: Runtime(model="a", port=70000),
        lambda: Runtime(model="a", timeout=0.0),
        lambda: Runtime(model="a", timeout=float("inf")),
        lambda: Runtime(model="a", tensor_parallel=0),
        lambda: Runtime(model="a", gpus=(-1,)),
        lambda: Runtime(model="a", gpus=(0, 0)),
        lambda: Runtime(model="a", memory_fraction=1.0),
        lambda: Runtime(model="a", context_length=-5),
        lambda: Runtime(model="a", context_length=0),
        lambda: Deployment("x", {}),
        lambda: Deployment("x", {"target": Runtime("a"), "drafter": Runtime("a")}),
        lambda: Deployment("x", {"target": Runtime("a")}, {"judge": "draft"}),
        lambda: Deployment(
            "x", {"target": Runtime("a"), "judge": Runtime("b")}, {"judge": "target"}
        ),
    ],
)
def test_a_value_out_of_range_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_defaults_are_in_range():
    assert Lookahead().depth == 6
    assert Sampling.from_dict({}) == Sampling()


@pytest.mark.parametrize(
    ("limits", "prompt", "context", "budget"),
    [
        (Limits(), 10, 100, 90),
        (Limits(max_tokens=5), 10, 100, 5),
        (Limits(max_tokens=500), 10, 100, 90),
        (Limits(max_total_tokens=50), 10, 100, 40),
        (Limits(max_total_tokens=500), 10, 100, 90),
        (Limits(max_tokens=7, max_total_tokens=12), 10, 100, 2),
        (Limits(), 100, 100, 0),
    ],
)
def test_the_tightest_limit_is_the_budget(limits, prompt, context, budget):
    assert limits.budget(prompt, context) == budget


def test_none_clears_a_field_or_is_an_option_that_was_not_given():
    assert Limits(max_tokens=5).replace(max_tokens=None) == Limits()
    with pytest.raises(ConfigError, match=r"lookahead\.depth: expected a whole number, got None"):
        Lookahead().replace(depth=None)
    assert Lookahead(depth=3).with_options(depth=None, width=2) == Lookahead(depth=3, width=2)
    for change in (Lookahead().replace, Lookahead().with_options):
        with pytest.raises(ConfigError):
            change(depth=0)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Lookahead, {"schedule": "asink"}, "lookahead.schedule: 'asink' is not one of"),
        (Lookahead, {"policy": "adptive"}, "lookahead.policy"),
        (
            Lookahead,
            {"half_sentence_guard": "no"},
            "lookahead.half_sentence_guard: expected true or false",
        ),
        (Lookahead, {"depth": 2.5}, "lookahead.depth: expected a whole number"),
        (Lookahead, {"depth": "3"}, "lookahead.depth"),
        (Limits, {"max_tokens": 10.5}, "limits.max_tokens"),
        (Sampling, {"temperature": True}, "sampling.temperature"),
    ],
)
@pytest.mark.parametrize("change", [False, True])
def test_what_comes_from_python_is_checked_too(kind, given, said, change):
    with pytest.raises(ConfigError, match=re.escape(said)):
        kind().replace(**given) if change else kind(**given)


def test_numbers_of_other_libraries_are_numbers():
    made = Lookahead(depth=np.int64(3)).replace(gate=np.float32(0.5))
    assert [type(value) for value in (made.depth, made.gate)] == [int, float]
    assert json.dumps(made.to_dict())


@pytest.mark.parametrize("key", ["hedge", "fast_accept", "priorities"])
def test_a_key_that_is_no_more_is_named(key):
    with pytest.raises(ConfigError, match=f"lookahead: '{key}' is no more") as caught:
        Lookahead.from_dict({"depth": 3, key: 0})
    assert "CHANGELOG" in caught.value.hint


def test_a_former_name_of_a_field_is_read_with_a_warning():
    with pytest.warns(FutureWarning, match="'slots' is called 'max_running_requests' now"):
        runtime = Runtime.from_dict({"model": "a/b", "slots": 3}, "[runtimes.target]")
    assert runtime == Runtime(model="a/b", max_running_requests=3)
    with pytest.raises(ConfigError, match="unknown key 'slots'"):
        Runtime.from_dict({"model": "a/b", "slots": 3, "max_running_requests": 4})
