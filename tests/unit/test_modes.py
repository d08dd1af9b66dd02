"""One check of modes against servers, their token layer and the verifier, in every command and
before anything starts.
"""

import pytest

import lr_sglang as lr
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.cli import settings
from lr_sglang.config import FED, Deployment, Lookahead, Runtime
from lr_sglang.engine.server_facts import layer_of_servers
from lr_sglang.errors import ConfigError
from lr_sglang.modes import DIFFERENT, MODES, Able, check_mode, possible
from lr_sglang.runtimes import attach
from lr_sglang.serve.errors import Refusal
from lr_sglang.serve.protocol import ChatRequest
from lr_sglang.serve.requests import settled
from lr_sglang.serve.settings import Service
from lr_sglang.tasks import Question
from tests import plan
from tests.called import called, settled_service
from tests.scripted import deployment
from tests.scripted_cli import transports

URLS = [f"--{role}=http://up/{role}" for role in ("target", "draft", "judge")]


@pytest.mark.parametrize(
    ("layer", "modes"),
    [
        ("", "autoregressive lookahead auto lossless"),
        ("NGRAM", "sd lookahead+sd auto lossless"),
        (FED, "lookahead+sd auto lossless"),
        (DIFFERENT, "auto lossless"),
        (None, "autoregressive sd lookahead lookahead+sd auto lossless"),
    ],
)
def test_what_servers_can_do_follows_from_their_roles_and_their_layer(layer, modes):
    every = set(modes.split())
    assert set(possible(Able(layer=layer))) == every
    ahead = {name for name in every if MODES[name].ahead}
    assert set(possible(Able(("target",), layer))) == every - ahead
    judged = {name for name in every if MODES[name].judged}
    assert set(possible(Able(("target", "draft"), layer, needs_judge=True))) == every - judged
    for name, mode in MODES.items():
        if name not in every:
            with pytest.raises(ConfigError, match=f"mode {name.replace('+', '.')}: "):
                check_mode(mode, Able(layer=layer))


@pytest.mark.parametrize(
    ("told", "layer"),
    [
        ([], None),
        ([{}], ""),
        ([{"speculative_algorithm": "NGRAM"}] * 2, "NGRAM"),
        ([{"speculative_algorithm": "NGRAM"}, {}], DIFFERENT),
    ],
)
def test_the_workers_of_a_router_have_one_layer_or_different_ones(told, layer):
    assert layer_of_servers(told) == layer


@pytest.fixture
def at_urls(servers, monkeypatch):
    """Makes runtimes at URLs say that their target has this token layer."""
    monkeypatch.setattr(settings, "model_of", lambda role, runtime: runtime.model or f"a/{role}")

    def say(layer):
        monkeypatch.setattr(settings, "layer_of", lambda role, runtime: layer)
        return servers

    return say


REFUSED = {
    None: (
        ("run a --mode sd --token-layer none", ": the runtime has no token layer"),
        (
            "run a --mode sd -o runtimes.target.token_layer=none -o runtimes.draft.token_layer=ngram",
            ": the runtime has no token layer",
        ),
        (
            "run a --mode lookahead --mode lookahead+sd --token-layer none",
            ": the runtime has no token layer",
        ),
        ("run a --mode lossless --verifier judge", "--verifier judge: mode lossless keeps only"),
        ("run a --mode lossless -o lookahead.verifier=likelihood", "--verifier likelihood: mode"),
        ("run a --mode lossless --verifier nonsense", "no verifier is called 'nonsense'"),
        ("run a --mode autoregressive --verifier nonsense", "no verifier is called 'nonsense'"),
        ("run a --mode sd --mode autoregressive --verifier exact", "sd and autoregressive asks"),
        ("run a --program specreason --verifier likelihood", "program specreason asks no verifier"),
        ("serve --port 0 --mode lossless --verifier judge", "mode lossless keeps only"),
        ("serve --port 0 --mode lossless -o serve.verifiers=likelihood", "mode lossless keeps"),
        (
            "serve --port 0 --target pocket:target --judge http://no "
            "--mode autoregressive -o serve.verifiers=exact",
            "mode autoregressive asks no verifier",
        ),
        ("launch --mode sd --verifier judge", "mode sd asks no verifier"),
        ("bench --modes lossless --verifier judge", "mode lossless keeps only"),
        ("bench --methods lossless,sd --verifier score", "lossless and sd keeps only"),
        ("bench --modes lossless --sweep verifier=exact,judge", "--sweep verifier: no mode of"),
        ("bench --modes autoregressive --sweep depth=1..3", "--sweep depth: no mode of"),
        ("bench --methods lossless,sd --sweep alpha=.5", "--sweep alpha: no mode of lossless, sd"),
    ),
    "": (
        ("EACH --mode lookahead --mode sd", "mode sd: the runtime has no token layer"),
        ("EACH --mode sd --mode lookahead+sd", "mode sd: the runtime has no token layer"),
    ),
    "NGRAM": (
        (
            "EACH --mode lookahead+sd --mode autoregressive",
            "mode autoregressive: the runtime has a",
        ),
        (
            "EACH --mode auto --mode lookahead",
            "mode lookahead: the runtime has a token layer, NGRAM",
        ),
        (
            "bench URLS --modes sd,lookahead",
            "mode lookahead: the runtime has a token layer",
        ),
        (
            "bench URLS --methods specreason,autoregressive",
            "mode autoregressive: the runtime has a token layer",
        ),
        (
            "run a URLS --token-layer ngram",
            "--token-layer ngram: it suits no role that is started",
        ),
    ),
    FED: (("EACH --mode lossless --mode sd", "mode sd: the target's token layer is fed, which"),),
    DIFFERENT: (
        ("EACH --mode lossless --mode sd", "mode sd: the token layer is not the same on all"),
    ),
}


@pytest.mark.parametrize(
    ("layer", "words", "said"),
    [
        (layer, words.replace("EACH", f"{command} URLS"), said)
        for layer, rows in REFUSED.items()
        for words, said in rows
        for command in (("run a", "serve --port 0", "launch") if "EACH" in words else ("",))
    ],
)
def test_a_mode_that_the_servers_or_its_verifier_rule_out_is_refused_before_anything_starts(
    at_urls, layer, words, said
):
    servers = at_urls(layer)
    result = called(*words.replace("URLS", " ".join(URLS)).split(), code=2)
    assert said in result.stderr and result.stdout == ""
    assert not servers.started


def test_bench_by_itself_takes_what_the_servers_can_do(at_urls):
    at_urls("NGRAM")
    told = called("bench", *URLS, "--print", "--methods", "specreason,sd").stdout
    assert "lookahead+sd" in told
    told = called("bench", *URLS, "--print").stdout
    assert "lossless" in told and "autoregressive" not in told


@pytest.mark.parametrize(
    ("layer", "options", "modes"),
    [
        ("", "", "auto lookahead autoregressive lossless"),
        (None, "", "auto lookahead autoregressive lossless"),
        ("NGRAM", "", "auto lookahead+sd sd lossless"),
        ("NGRAM", "--mode auto --mode sd", "auto sd"),
        (FED, "", "auto lossless lookahead+sd"),
    ],
)
def test_an_endpoint_over_servers_at_urls_promises_what_they_can_do(at_urls, layer, options, modes):
    at_urls(layer)
    assert settled_service([*URLS, *options.split()]).modes == tuple(modes.split())


def test_the_default_mode_is_one_of_the_servers(at_urls):
    at_urls("NGRAM")
    assert settings.settle({"target": "http://up"}).modes == ("lookahead+sd",)


@pytest.mark.parametrize(
    "words",
    [
        "--mode lossless --verifier exact",
        "--mode lossless --mode lookahead --verifier likelihood",
        "--program self_consistency:samples=2 --verifier exact",
    ],
)
def test_one_that_something_asks_is_taken(servers, words):
    called("run", "a", "--json", *words.split())


def test_an_endpoint_without_a_mode_that_asks_a_judge_needs_none(tmp_path):
    file = tmp_path / "shared.toml"
    file.write_text(
        '[runtimes.target]\nmodel = "pocket:target"\n[runtimes.draft]\nmodel = "pocket:draft"\n'
        '[shared]\njudge = "target"\n'
    )
    for modes in (("lossless", "autoregressive"), ("autoregressive",), ("lossless",)):
        options = [f"--deployment={file}", *(f"--mode={mode}" for mode in modes)]
        assert settled_service(options).verifiers == ("exact",)
    options = [f"--deployment={file}", "--mode=lossless", "--mode=lookahead"]
    assert settled_service(options).verifiers == ("judge", "exact")


def test_a_verifier_of_an_endpoint_that_lacks_its_judge_is_refused():
    options = ["--target=a/b", "--draft=a/c", "--verifier=exact", "-oserve.verifiers=judge"]
    assert settled_service([*options, "--judge=target"]).verifiers == ("exact", "judge")
    with pytest.raises(ConfigError, match="judge needs a judge model"):
        settled_service(options)


@pytest.mark.parametrize(
    ("wish", "taken"),
    [
        ({"mode": "lossless", "verifier": "judge"}, False),
        ({"mode": "lossless", "verifier": "exact"}, True),
        ({"mode": "autoregressive", "verifier": "exact"}, False),
        ({"verifier": "judge"}, False),  # the default mode is lossless
        ({"mode": "lookahead", "verifier": "judge"}, True),
    ],
)
def test_a_request_that_names_a_verifier_which_its_mode_does_not_ask_is_refused(wish, taken):
    service = Service(
        modes=("lossless", "lookahead", "autoregressive"), verifiers=("judge", "exact")
    )
    request = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "How?"}], "lookahead": wish}
    )
    if taken:
        assert settled(request, service)
        return
    with pytest.raises(Refusal, match="asks no verifier") as caught:
        settled(request, service)
    assert (caught.value.status, caught.value.param) == (400, "lookahead.verifier")


def test_the_runner_refuses_a_mode_before_the_first_is_answered():
    doubles = transports()
    asked = Plan(deployment=Deployment("up", {"target": Runtime(url="http://up")})).with_settings(
        lookahead=Lookahead(verifier="exact")
    )
    runner = Runner(deployment(**doubles).roles, asked)
    question = plan([Question("q", "How?")], ("lookahead", "sd"))
    with pytest.raises(ConfigError, match="mode sd: the runtime has no token layer"):
        list(runner.run(question))
    assert not doubles["target"].requests and not doubles["draft"].requests


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mode": "lossless", "verifier": "likelihood"}, "verifier likelihood: mode lossless"),
        ({"mode": "autoregressive", "verifier": "exact"}, "mode autoregressive asks no verifier"),
        ({"verifier": "exact", "program": "specreason"}, "program specreason asks no verifier"),
        ({"mode": "sd"}, "mode sd: the runtime has no token layer"),
    ],
)
def test_python_refuses_what_commands_refuse(asked, said):
    doubles = transports()
    with lr.deployment(deployment(**doubles).roles) as d:
        with pytest.raises(ConfigError, match=said):
            lr.solve("How?", deployment=d, **asked)
        assert not any(double.requests for double in doubles.values())


def test_a_server_that_does_not_answer_says_nothing_of_its_layer():
    assert attach.layer_of("target", Runtime(url="http://127.0.0.1:1")) is None
