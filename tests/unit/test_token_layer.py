"""The token layer: from settings to flags, what is refused before anything
starts, slots.
"""

import itertools

import pytest

from lr_sglang.algorithm import policy
from lr_sglang.cli import settings
from lr_sglang.cli.settings import modes_of
from lr_sglang.config import Lookahead, Runtime, TokenLayer
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.launching.flags import ALGORITHMS, Platform
from lr_sglang.sglang_api.plugin_protocol import FED_SWITCH
from lr_sglang.steps.branch import Branch, Generation
from lr_sglang.steps.trace import acceptance
from lr_sglang.steps.tree import Node, StepTree

CPU, GPU = Platform("cpu", {"enable-mixed-chunk": True}), Platform("cuda")


def layer(algorithm, **more):
    draft = {"draft_model": "owner/head"} if ALGORITHMS[algorithm].draft == "needed" else {}
    return TokenLayer(algorithm, **{**draft, **more})


def line(runtime, platform=GPU):
    return list(flags.command(runtime, 1, platform).argv)


def test_only_pocket_models_write_json_without_white_space():
    """They would write line feeds within a schema until the tokens end."""
    flag = "--constrained-json-disable-any-whitespace"
    for model, has in (("pocket:target", True), ("pocket:target-thinks", True), ("a/b", False)):
        assert (flag in line(Runtime(model=model))) == has


def value(argv, flag):
    return argv[argv.index(f"--{flag}") + 1] if f"--{flag}" in argv else None


# -- flags


@pytest.mark.parametrize(
    ("wanted", "tokens", "steps", "topk"),
    [
        (layer("ngram"), 9, None, None),
        (layer("ngram", tokens=6, topk=1), 7, None, None),
        (layer("standalone"), 9, 8, 1),
        (layer("standalone", tokens=3), 4, 3, 1),
        (layer("standalone", steps=3), 4, 3, 1),
        (layer("eagle3", topk=4), 9, 5, 4),
        (layer("eagle3", topk=4, steps=3, tokens=15), 16, 3, 4),
        (layer("nextn", tokens=2), 3, 2, 1),
        (layer("dflash", tokens=7), 8, None, None),
        (layer("dflash"), None, None, None),
        (layer("fed"), 13, None, None),
        (layer("fed", tokens=20, ngram_max=3), 21, None, None),
    ],
    ids=str,
)
def test_sd_tokens_are_drafted_ones_and_one_more_is_verified(wanted, tokens, steps, topk):
    found = flags.layer_flags(wanted)
    names = ("num-draft-tokens", "num-steps", "eagle-topk")
    assert tuple(found.get(f"speculative-{name}") for name in names) == (tokens, steps, topk)


def test_the_command_line_of_a_server_has_them():
    argv = line(
        Runtime(
            model="a/b", token_layer=layer("standalone", draft_model="c/d"), max_running_requests=7
        ),
        CPU,
    )
    assert value(argv, "speculative-draft-model-path") == "c/d"
    assert value(argv, "max-running-requests") == "7"
    assert "--enable-mixed-chunk" not in argv
    assert "--enable-mixed-chunk" in line(Runtime(model="a/b"), CPU)


# -- options of the command line


def plan(**given):
    return settings.settle(dict(**{"mode": (), **given}))


def layers(**given):
    runtimes = plan(**given).deployment.runtimes
    return {role: runtime.token_layer for role, runtime in runtimes.items()}


def of_both(**layer):
    return {"runtimes": {role: {"token_layer": dict(layer)} for role in ("target", "draft")}}


NONE = TokenLayer()
NGRAM = TokenLayer("ngram", tokens=4)
POCKET = TokenLayer("standalone", draft_model="pocket:draft", tokens=6)


@pytest.mark.parametrize(
    ("given", "target", "draft"),
    [
        ({"token_layer": "ngram", "option": of_both(tokens=4)}, NGRAM, NGRAM),
        ({"token_layer": "standalone"}, POCKET, NONE),
        ({"token_layer": "fed"}, TokenLayer("fed"), NONE),
    ],
)
def test_a_layer_with_a_model_is_for_the_target_and_one_without_for_the_draft_too(
    given, target, draft
):
    found = layers(**given)
    assert (found["target"], found["draft"]) == (target, draft)
    assert not found["judge"].on


def test_none_is_no_token_layer():
    assert not any(layer.on for layer in layers(token_layer="none").values())
    off = layers(token_layer="none", mode=("lossless",))
    assert not off["target"].on and not settings.settle({"token_layer": "none"}).lossless_layer
    draft = {"runtimes": {"draft": {"token_layer": {"algorithm": "ngram"}}}}
    found = layers(token_layer="none", option=draft, mode=("lookahead+sd",))
    assert (found["target"].on, found["draft"]) == (False, TokenLayer("ngram"))


@pytest.mark.parametrize(
    ("given", "modes"),
    [
        ({}, ("lookahead",)),
        ({"token_layer": "none"}, ("lookahead",)),
        ({"token_layer": "ngram"}, ("lookahead+sd",)),
        ({"token_layer": "fed"}, ("lossless",)),
        ({"mode": ("sd", "sd", "lossless")}, ("sd", "lossless")),
    ],
)
def test_the_mode_follows_the_layer_if_it_is_not_given(given, modes):
    assert modes_of(given) == modes


def test_a_fed_target_has_chains_and_the_variable_that_turns_its_plugin_on():
    for platform in (CPU, GPU):
        command = flags.command(Runtime(model="a/b", token_layer="fed"), 1, platform)
        assert value(command.argv, "speculative-algorithm") == "NGRAM"
        assert value(command.argv, "speculative-ngram-max-bfs-breadth") == "1"
        assert command.env[FED_SWITCH] == "1"
    assert FED_SWITCH not in flags.command(Runtime(model="a/b", token_layer="ngram"), 1, GPU).env


@pytest.mark.parametrize("name", ["ngram", "fed"])
def test_a_trie_of_n_grams_takes_little_of_a_cpus_memory(name):
    flag = "speculative-ngram-capacity"
    runtime = Runtime(model="a/b", token_layer=name)
    assert int(value(line(runtime, CPU), flag)) * 184 < 200e6
    assert value(line(runtime), flag) is None
    assert value(line(runtime.replace(extra={flag: 9}), CPU), flag) == "9"


@pytest.mark.parametrize("name", ["ngram", "fed"])
def test_the_release_that_lacks_a_header_gets_it(name, monkeypatch):
    runtime = Runtime(model="a/b", token_layer=name)
    monkeypatch.setattr(flags.release, "version", lambda: "0.5.16+cu130")
    assert flags.command(runtime, 1, CPU).env["CXX"] == "c++ -include cstddef"
    assert "CXX" not in flags.command(runtime, 1, CPU, environ={"CXX": "g++-9"}).env
    monkeypatch.setattr(flags.release, "version", lambda: "0.5.23")
    assert "CXX" not in flags.command(runtime, 1, CPU).env


def test_an_exact_answer_is_fed_where_the_deployment_says_so(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\n[runtimes.target]\nmodel = "pocket:target"\ntoken_layer = "fed"\n'
        '[runtimes.draft]\nmodel = "pocket:draft"\n[runtimes.judge]\nmodel = "pocket:judge"\n'
    )
    found = plan(deployment=str(file), mode=("autoregressive", "lossless", "auto", "lookahead+sd"))
    fed = {mode: found.needed([mode]).runtimes["target"].token_layer.fed for mode in found.modes}
    assert fed == {"autoregressive": False, "lossless": True, "auto": True, "lookahead+sd": True}


def test_an_environment_without_the_plugin_is_told_before_a_server_starts(monkeypatch):
    flags.check_installed(TokenLayer("fed"))
    monkeypatch.setattr(flags, "entry_points", lambda **where: ())
    flags.check_installed(TokenLayer("ngram"))
    with pytest.raises(SetupError, match="no entry point lr_sglang_fed"):
        flags.check_installed(TokenLayer("fed"))


# -- what cannot be


def at_start(wanted, platform=GPU, model="a/b"):
    runtime = Runtime(model=model, device="cuda", token_layer=wanted)
    flags.command(runtime, 1, platform, where="[runtimes.target]")


def in_table(**more):
    Runtime.from_dict({"model": "a/b", **more})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda: at_start(TokenLayer("nagram")), "no token layer is called 'nagram'"),
        (lambda: at_start(TokenLayer("eagle3")), "it drafts with a model"),
        (lambda: at_start(TokenLayer("ngram", draft_model="a/b")), "it drafts without a model"),
        (lambda: at_start(TokenLayer("ngram", steps=3)), "it has no 'steps'"),
        (lambda: at_start(layer("dflash", topk=2)), "it has no 'topk'"),
        (lambda: at_start(layer("eagle", ngram_max=2)), "it has no 'ngram_max'"),
        (lambda: at_start(layer("dflash"), CPU), "SGLang runs it on GPUs only"),
        (lambda: at_start(layer("dspark"), CPU), "SGLang runs it on GPUs only"),
        (
            lambda: at_start(TokenLayer("ngram", accept_length=2.0), model="Qwen/Qwen3-1.7B"),
            "would write what was drafted",
        ),
        (
            lambda: in_table(token_layer={"algorithm": "ngram", "tokens": 0}),
            "token_layer.tokens: input should be greater than or equal to 1",
        ),
        (lambda: in_table(token_layer={"tokens": 4}), "tokens: given for no token layer"),
        (lambda: in_table(token_layer={"token": 4}), "unknown key 'token'"),
        (
            lambda: Runtime.from_dict({"url": "http://a", "token_layer": "ngram"}),
            "a server that runs already has its own",
        ),
        (lambda: in_table(max_running_requests=0), "max_running_requests: input should be greater"),
        (
            lambda: layers(mode=("lookahead",), token_layer="ngram"),
            "mode lookahead has no token layer",
        ),
        (
            lambda: layers(mode=("autoregressive",), option=of_both(tokens=4)),
            "mode autoregressive has no token layer",
        ),
        (lambda: layers(token_layer="ngran"), "no token layer is called 'ngran'"),
        (lambda: layers(token_layer="eagle"), "it drafts with a model"),
        (
            lambda: layers(token_layer="ngram", option=of_both(steps=3)),
            "token layer ngram: it has no 'steps'",
        ),
        (lambda: at_start(TokenLayer("fed", topk=2)), "it has no 'topk'"),
        (lambda: at_start(TokenLayer("fed", draft_model="a/b")), "it drafts without a model"),
        (
            lambda: layers(option={"runtimes": {"draft": {"token_layer": {"algorithm": "fed"}}}}),
            "runtimes.draft.token_layer: fed is for the target",
        ),
        (lambda: plan(mode=("sd",), token_layer="fed").checked(), "mode sd: the target's token"),
        (lambda: plan(mode=("lookahead",), token_layer="fed"), "lookahead has no token layer"),
        (
            lambda: plan(target="a/b", mode=("lossless",), token_layer="fed").checked(),
            "lookahead needs a draft",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(asked, said):
    with pytest.raises(ConfigError, match=said):
        asked()


def test_lossless_has_the_layer_if_it_is_asked_for():
    plain, layered = (
        settings.settle(dict(**{"mode": ("lossless",), **more}))
        for more in ({}, {"token_layer": "ngram"})
    )
    assert not plain.needed(["lossless"]).runtimes["target"].token_layer.on
    assert layered.needed(["lossless"]).runtimes["target"].token_layer.on
    assert {*layered.needed(["lossless", "sd"]).runtimes} == {"target"}, "which writes alone"
    config = plain.configured("lossless")
    assert config["lookahead"]["verifier"] == "exact"
    assert "judge" not in config["runtimes"] and "judge" not in plain.needed(["lossless"]).runtimes


# -- slots


def most_in_flight(look, role):
    """Grows a tree in which nothing is decided, and counts what may be asked for at a time."""
    tree = StepTree(look.depth, 10**9)
    from lr_sglang.steps.step import Ending, Step

    step = Step("a\n\n", (1,), Ending.DELIMITER, "v")
    drafts = 0
    while found := tree.to_propose():
        drafts = max(drafts, len(found) * look.width)
        for node in found:
            for child in tree.add_children(node, look.width):
                tree.enter_draft(child, step)
    branches = tree.to_expand(look.depth if look.schedule == "sync" else look.depth - 1)
    drafted = sum(isinstance(node, Node) and node is not tree.root for node in tree.live())
    return {"target": len(branches), "draft": drafts, "judge": drafted}[role]


@pytest.mark.parametrize(
    ("schedule", "depth", "width"), itertools.product(("async", "sync"), (1, 2, 5), (1, 2, 3))
)
def test_slots_are_what_a_whole_tree_has(schedule, depth, width):
    look = Lookahead(schedule=schedule, depth=depth, width=width)
    for role in ("target", "draft", "judge"):
        assert policy.in_flight(look, role) == most_in_flight(look, role), role
        assert policy.running_requests(look, role, 3) >= 3 * policy.in_flight(look, role)


def test_servers_get_the_slots_that_their_roles_and_answers_need():
    plan = settings.settle({"depth": 3, "judge": "target"})
    needed = plan.needed(["lookahead"], answers=4)
    assert needed.runtimes["target"].max_running_requests == 4 * 3 + 4 * 3 + 2 * policy.SPARE_SLOTS
    assert needed.runtimes["draft"].max_running_requests == 4 + policy.SPARE_SLOTS
    assert (
        plan.needed(["autoregressive"], answers=4).runtimes["target"].max_running_requests
        == 4 + policy.SPARE_SLOTS
    )


# -- counts


def test_acceptance_is_counted_from_the_runtimes_own_numbers():
    meta = {"spec_verify_ct": 4, "spec_num_proposed_drafts": 32, "spec_num_correct_drafts": 6}
    branch = Branch("target", 0)
    branch.result = Generation((1,), "length", None, 1, 0, meta)
    branch.record(1.0)
    assert acceptance([]) == acceptance([(0, 0, 0)])
    assert acceptance([]) | {"length": None, "rate": None} == acceptance([])
    assert acceptance([branch.sd, (4, 32, 10)]) == {
        "verified": 8,
        "drafted": 64,
        "accepted": 16,
        "length": 3.0,
        "rate": 0.25,
    }


# -- acceptance that SGLang simulates


@pytest.mark.parametrize(
    ("layer", "mode"),
    [
        (TokenLayer("ngram", accept_length=2.5), None),
        (
            TokenLayer("eagle3", draft_model="dummy:qwen3-1.7b-eagle3", topk=2, accept_length=2.5),
            None,
        ),
        (
            TokenLayer("standalone", draft_model="dummy:qwen3-0.6b", accept_length=2.5),
            "real-draft-token",
        ),
    ],
    ids=lambda value: value.algorithm if isinstance(value, TokenLayer) else None,
)
def test_a_simulated_acceptance_is_a_variable_of_the_server_and_drafted_tokens_are_those_of_chains(
    layer, mode
):
    runtime = Runtime(model="dummy:qwen3-1.7b", device="cuda", token_layer=layer)
    env = flags.command(runtime, 4000, Platform("cuda")).env
    assert env["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    assert env.get("SGLANG_SIMULATE_ACC_TOKEN_MODE") == mode
    plain = runtime.replace(token_layer=layer.replace(accept_length=None))
    assert "SGLANG_SIMULATE_ACC_LEN" not in flags.command(plain, 4000, Platform("cuda")).env
