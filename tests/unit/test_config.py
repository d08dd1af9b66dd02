"""Configuration says no, early and helpfully."""

import json
import re
import tomllib
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from lr_sglang.cli import cli, options, settings
from lr_sglang.cli.options import BenchSettings, RunSettings
from lr_sglang.config import (
    ROLES,
    Deployment,
    Limits,
    Lookahead,
    Runtime,
    Sampling,
    TokenLayer,
)
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import attach, load_deployment, override_all
from lr_sglang.runtimes.launching import probe
from lr_sglang.runtimes.placement import models
from lr_sglang.serve.protocol import ChatRequest, LookaheadRequest
from lr_sglang.serve.settings import ServeSettings
from tests import ROOT, loaded

described = loaded(ROOT / "scripts/cli_page.py").described


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
        (Runtime, {"model": "a", "extra": 3}, "extra: input should be a table"),
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
        lambda: override_all(load_deployment(), {"drafter": "a"}),
        lambda: override_all(load_deployment(), {"judge": "judge"}),
        # the draft's runtime then plays both, but who is the target?
        lambda: override_all(load_deployment(), {"target": "draft"}),
    ],
)
def test_what_cannot_be_is_refused(make):
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
    assert Sampling(temperature=0.6).replace(top_k=20).given() == {"temperature": 0.6, "top_k": 20}


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


# -- deployments and their files


EXAMPLES = sorted((ROOT / "examples" / "deployments").glob("*.toml"))

TARGET = '[runtimes.target]\nmodel = "owner/name"\n'


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_read(path):
    assert "target" in load_deployment(path).runtimes


def test_a_deployment_is_named_after_its_file(written):
    assert load_deployment(written(TARGET)).name == "mine"


def test_a_role_may_share_the_runtime_of_another(written):
    deployment = load_deployment(written(f'[runtimes]\njudge = "target"\n{TARGET}'))
    assert deployment.runtime("judge") is deployment.runtimes["target"]
    assert deployment == load_deployment(written(f'{TARGET}[shared]\njudge = "target"\n'))


@pytest.mark.parametrize(
    ("judge", "prompt"),
    [
        ('[runtimes.judge]\nmodel = "pocket:judge"\n', "pocket"),
        ('[runtimes.judge]\nmodel = "pocket:judge@qwen3-0.6b"\n', "pocket"),
        ('[runtimes.judge]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\n', "paper"),
        (
            '[runtimes.judge]\nurl = "http://here:1"\n',
            "",
        ),  # it is asked for its model when it is needed
        ('[shared]\njudge = "target"\n', "paper"),
        ("", "paper"),
    ],
)
def test_a_file_without_a_judge_prompt_has_that_of_its_judge(written, judge, prompt):
    assert load_deployment(written(TARGET + judge)).judge_prompt == prompt
    assert (
        load_deployment(written(f'judge_prompt = "paper"\n{TARGET}{judge}')).judge_prompt == "paper"
    )


def test_paths_that_begin_with_a_dot_are_relative_to_the_file(written, tmp_path):
    layer = 'token_layer = {algorithm = "eagle", draft_model = "../small"}'
    path = written(
        f'[runtimes.target]\nmodel = "./big"\n{layer}\nextra = {{lora-paths = "../more", n = 1}}\n'
    )
    runtime = load_deployment(path).runtimes["target"]
    assert runtime.model == str(tmp_path / "big")
    assert runtime.token_layer.draft_model == str(tmp_path / "../small")
    assert runtime.extra == {"lora-paths": str(tmp_path / "../more"), "n": 1}
    for folder in (".", "..", ".models/big"):
        path = written(f'[runtimes.target]\nmodel = "{folder}"\nextra = {{suffix = ".x"}}\n')
        runtime = load_deployment(path).runtimes["target"]
        assert (runtime.model, runtime.extra["suffix"]) == (str(tmp_path / folder), ".x")


@pytest.mark.parametrize(
    ("text", "said", "hinted"),
    [
        ("[runtimes.target\n", "this is not TOML", ""),
        (b"name = '\xff'\n", "this is not TOML", ""),
        ('[runtimes.target]\nmodle = "a"\n', "runtimes.target: unknown key 'modle'", "model?"),
        (
            "[runtimes.target]\nport = 1\n",
            "runtimes.target: a runtime needs either 'model' or 'url'",
            "",
        ),
        (
            '[runtimes.target]\nmodel = "a"\nport = "x"\n',
            "runtimes.target.port: input should be a valid integer",
            "",
        ),
        (
            '[runtimes.target]\nmodel = "a"\nport = 99999\n',
            "runtimes.target.port: input should be less than 65536, got 99999",
            "",
        ),
        ("[runtimes]\ntarget = 3\n", "runtimes.target: input should be a table", ""),
        ("runtimes = 3\n", "runtimes: input should be a table", ""),
        (f"shared = 3\n{TARGET}", "shared: input should be a table", ""),
        ('[runtimes.drafter]\nmodel = "a"\n', "no such role", ""),
        ('[runtimes.draft]\nmodel = "a"\n', "at least [runtimes.target]", ""),
        (f'{TARGET}[shared]\njudge = "draft"\n', "there is no [runtimes.draft]", ""),
        (f"{TARGET}[lookahead]\ndeep = 3\n", "unknown key 'deep'", "depth?"),
        (f"{TARGET}[sampling]\ntop_p = 2\n", "top_p", ""),
        ("", "at least [runtimes.target]", ""),
    ],
)
def test_an_error_names_the_file_and_the_place(written, text, said, hinted):
    with pytest.raises(ConfigError) as caught:
        load_deployment(written(text))
    assert caught.value.message.startswith("mine.toml: ")
    assert said in caught.value.message and hinted in caught.value.hint


def test_a_name_that_is_no_deployment(tmp_path):
    with pytest.raises(ConfigError, match=r"pockets.*\nHint: .*pocket"):
        load_deployment("pockets")
    for path in (tmp_path, "~nobody-of-this-name/mine.toml"):
        with pytest.raises(ConfigError, match="cannot read"):
            load_deployment(path)
    with pytest.raises(ConfigError, match="does not exist"):
        models.locate("~nobody-of-this-name/model")


def test_a_model_replaces_a_model_and_keeps_the_rest(written):
    path = written(f'{TARGET}port = 1234\ntokenizer = "t"\ngpus = [3]\n')
    runtime = override_all(load_deployment(path), {"target": "other/name"}).runtimes["target"]
    assert (runtime.model, runtime.port, runtime.gpus, runtime.tokenizer) == (
        "other/name",
        1234,
        (3,),
        "",
    )


POCKET = {role: f"pocket:{role}" for role in ROLES}
SHARES = [{"judge": "target"}]
TWO = [{"draft": "judge", "judge": "owner/name"}]  # where one alone could not be
ONE = [*TWO, {"judge": "target", "draft": "target"}]


@pytest.mark.parametrize(
    ("changes", "played"),
    [
        ([{"draft": "http://there:30000"}], {"draft": "http://there:30000"}),
        ([{"draft": "http://there:30000"}, {"draft": "pocket:draft"}], {}),
        (SHARES, {"judge": "target"}),
        ([*SHARES, {"judge": "owner/name"}], {"judge": "owner/name"}),
        (TWO, TWO[0]),
        ([*TWO, {"judge": None, "target": None}], TWO[0]),
        (ONE, ONE[1]),
        ([*ONE, {"draft": "a/b", "judge": "draft"}], {"draft": "a/b", "judge": "draft"}),
    ],
)
def test_a_model_a_url_or_a_role_whose_runtime_it_shares_replaces_another(changes, played):
    """Several may change together, in any order."""
    made = reduce(override_all, changes, load_deployment())
    found = {role: runtime.model or runtime.url for role, runtime in made.runtimes.items()}
    assert {**found, **made.shared} == {**POCKET, **played} and not found.keys() & made.shared


# -- assignments


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
    known = [probe.ModelInfo("dummy:qwen3-32b", "")]
    monkeypatch.setattr(attach, "what_runs", lambda role, runtime: known)
    (tmp_path / "base.toml").write_text(FILE)
    table, _, last = one.name.rpartition(".")
    text = text_for(one)
    more = [f"runtimes.{table.split('.')[1]}.{with_}" for with_ in WITH.get(last, ())]
    given = {
        "mode": ("lookahead+sd",),
        "deployment": str(tmp_path / "base.toml"),
        "option": table_of(*more, f"{one.name}={text}"),
    }
    found = reduce(
        lambda at, name: at[name] if isinstance(at, dict) else getattr(at, name),
        one.name.split("."),
        settings.settle(given).deployment,
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
    given = command.make_context("run", ["-o", "run.prompt_suffix=So:", "q"]).params
    assert (given["prompt_suffix"], given["option"]) == ("So:", {})


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
