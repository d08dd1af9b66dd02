"""``-o NAME=VALUE``: every setting of the models can be given, and arrives; a request sets six."""

from functools import reduce

import pytest
from pydantic import ValidationError

from lr_sglang.cli import cli, options, settings
from lr_sglang.cli.options import BenchSettings, RunSettings
from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling, described
from lr_sglang.runtimes.launching import probe
from lr_sglang.serve.protocol import ChatRequest, LookaheadRequest
from lr_sglang.serve.settings import ServeSettings

FILE = """
[runtimes.target]
model = "dummy:qwen3-32b"
token_layer = {algorithm = "eagle", draft_model = "a/head"}
[runtimes.draft]
model = "dummy:qwen3-1.7b"
token_layer = {algorithm = "eagle", draft_model = "a/head"}
[runtimes.judge]
model = "dummy:qwen2.5-7b"
"""
# Text to give, where another than that of the type is needed.
TEXTS = {
    "url": "http://host:1",
    "gpus": "0,1",
    "algorithm": "ngram",
    "verifier": "exact",
    "memory_fraction": "0.5",
    "accept_length": "2.5",
    "top_p": "0.5",
    "min_p": "0.5",
    "gate": "0.5",
    "max_false_accepts": "0.5",
    "paper": "table1",
    "range": "2:4",
    "judge_prompt": "pocket",
    "context_length": "4096",
}
# Further assignments that a setting needs.
WITH = {
    "url": ["model=", "token_layer=none"],
    "ngram_max": ["token_layer.algorithm=ngram"],
}
BY_KIND = {"text": "x", "whole number": "2", "number": "3.5", "true or false": "true"}
DEPLOYMENT = [
    one
    for one in described(Deployment)
    if one.kind != "table" and not one.name.startswith("runtimes.judge.token_layer")
]
OWN = [
    (root, model, one)
    for root, model in (("run", RunSettings), ("bench", BenchSettings), ("serve", ServeSettings))
    for one in described(model)
]


def text_for(one):
    """Text that a setting takes; another value than its default."""
    last = one.name.rpartition(".")[2]
    if last in TEXTS:
        return TEXTS[last]
    choices = one.kind.split(" or ")
    if one.kind == "true or false":
        return "false" if one.default is True else "true"
    if len(choices) > 1:
        return next(choice for choice in choices if choice != one.default)
    kind = next(kind for kind in BY_KIND if one.kind.startswith(kind))
    return BY_KIND[kind]


def as_text(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def table_of(*texts, own=None):
    kind = options.Assignment()
    return options.gathered(tuple(kind.convert(one, None, None) for one in texts), own or {})


@pytest.mark.parametrize("one", DEPLOYMENT, ids=lambda one: one.name)
def test_every_setting_can_be_assigned_and_arrives_in_the_plan(one, tmp_path, monkeypatch):
    monkeypatch.setattr(
        probe, "model_info", lambda url, **more: probe.ModelInfo("dummy:qwen3-32b", "")
    )
    (tmp_path / "base.toml").write_text(FILE)
    table, _, last = one.name.rpartition(".")
    text = text_for(one)
    more = [f"runtimes.{table.split('.')[1]}.{with_}" for with_ in WITH.get(last, ())]
    given = {
        "mode": ("lookahead+sd",),
        "deployment": str(tmp_path / "base.toml"),
        "option": table_of(*more, f"{one.name}={text}"),
    }
    plan = settings.settle(given)
    found = reduce(
        lambda at, name: at[name] if isinstance(at, dict) else getattr(at, name),
        one.name.split("."),
        plan.deployment,
    )
    assert as_text(found).removesuffix(".0") == text


@pytest.mark.parametrize(("root", "model", "one"), OWN, ids=lambda one: getattr(one, "name", ""))
def test_every_setting_of_a_command_can_be_assigned(root, model, one):
    text = text_for(one)
    table = table_of(f"{root}.{one.name}={text}", own={root: model})
    made = model.from_dict(table[root], root)
    assert as_text(getattr(made, one.name)).removesuffix(".0") == text
    assert made != model()


def test_the_settings_of_a_command_become_its_parameters():
    command = cli.get_command(None, "run")
    given = command.make_context("run", ["-o", "run.range=0:5", "q"]).params
    assert (given["range"], given["prompt_suffix"], given["option"]) == ("0:5", None, {})


def test_a_role_that_shares_a_runtime_has_no_settings_of_its_own():
    with pytest.raises(settings.ConfigError, match="shares the runtime of target"):
        settings.settle({"judge": "target", "option": table_of("runtimes.judge.gpus=0")})


# -- what a request may set


REQUESTED = {one.name for one in described(Lookahead) if one.request}


def test_a_request_sets_what_the_models_say():
    assert {"schedule", "depth", "width", "verifier"} == REQUESTED
    assert set(LookaheadRequest.model_fields) == REQUESTED | {"mode", "trace"}
    own = {one.name for model in (Sampling, Limits) for one in described(model) if one.request}
    assert own == {"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"}
    assert own < set(ChatRequest.model_fields)
    assert not [one.name for one in described(Runtime) if one.request]


@pytest.mark.parametrize(
    "name",
    sorted(
        {one.name.rpartition(".")[2] for one in described(Deployment)}
        | {
            one.name
            for model in (RunSettings, BenchSettings, ServeSettings)
            for one in described(model)
        }
        | set(Runtime.model_fields)
        | {"program", "runtimes", "lookahead", "sampling", "limits", "deployment", "option"}
    ),
)
def test_a_request_sets_nothing_else(name):
    if name in REQUESTED:
        assert LookaheadRequest.model_validate({name: {"depth": 2, "width": 2}.get(name, "sync")})
        return
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        LookaheadRequest.model_validate({name: "x"})
