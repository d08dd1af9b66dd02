"""Configuration says no, early and helpfully."""

import json
import re
import tomllib

import numpy as np
import pytest

from lr_sglang.config import (
    Deployment,
    Limits,
    Lookahead,
    Runtime,
    Sampling,
    TokenLayer,
    described,
)
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
        (Lookahead, {"depth": "six"}, "lookahead.depth: input should be a valid integer"),
        (Lookahead, {"depth": 2.5}, "lookahead.depth: input should be a valid integer"),
        (Lookahead, {"depth": None}, "lookahead.depth: input should be a valid integer"),
        (
            Lookahead,
            {"half_sentence_guard": "x"},
            "half_sentence_guard: input should be a valid boo",
        ),
        (Lookahead, {"max_false_accepts": 0}, "lookahead.max_false_accepts: "),
        (Lookahead, {"max_false_accepts": -0.1}, "lookahead.max_false_accepts: "),
        (Lookahead, {"max_false_accepts": 1.1}, "lookahead.max_false_accepts: "),
        (Lookahead, {"schedule": "later"}, "schedule: input should be 'async' or 'sync'"),
        (Lookahead, {"verifier": object()}, "verifier: must be a name"),
        (Sampling, {"temperature": "warm"}, "sampling.temperature: input should be a valid number"),
        (Runtime, {"model": "a", "gpus": "a"}, "gpus.0: input should be a valid integer"),
        (Runtime, {"model": "a", "extra": 3}, "extra: input should be a valid dictionary"),
        (
            Deployment,
            {"name": "x", "runtimes": {"target": {"model": "a", "prot": 1}}},
            "runtimes.target: unknown key 'prot'",
        ),
        (Deployment, {"runtimes": {}}, "deployment.name: field required"),
    ],
)
@pytest.mark.parametrize("by_table", [False, True])
def test_a_wrong_type_is_refused_by_name(kind, table, said, by_table):
    with pytest.raises(ConfigError, match=re.escape(said)):
        kind.from_dict(table, kind.__name__.lower()) if by_table else kind(**table)


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
    assert Lookahead(depth=3).with_options(depth=None, width=2) == Lookahead(depth=3, width=2)
    for change in (Lookahead().replace, Lookahead().with_options):
        with pytest.raises(ConfigError):
            change(depth=0)


def test_a_copy_remembers_what_was_given():
    """A model family's advice stands between a default and what a file says."""
    given = Sampling(temperature=0.6).replace(top_k=20).given()
    assert given == {"temperature": 0.6, "top_k": 20}


def test_numbers_of_other_libraries_are_numbers():
    made = Lookahead(depth=np.int64(3)).replace(gate=np.float32(0.5))
    assert [type(value) for value in (made.depth, made.gate)] == [int, float]
    assert json.dumps(made.to_dict())


def test_every_setting_has_a_line_of_help():
    for model in (Deployment, Sampling, Lookahead, Limits, TokenLayer, Runtime):
        for name, field in model.model_fields.items():
            assert field.description and "\n" not in field.description, (model, name)


def test_the_names_of_settings_are_those_of_a_file():
    names = [one.name for one in described(Deployment)]
    assert len(names) == len(set(names))
    assert {"lookahead.width", "runtimes.draft.token_layer.tokens", "judge_prompt"} < set(names)
    widest = next(one for one in described(Deployment) if one.name == "lookahead.width")
    assert (widest.kind, widest.default) == ("whole number >= 1, <= 16", 1)
