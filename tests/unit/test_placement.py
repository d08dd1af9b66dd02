"""Which role goes on which GPUs, on machines that are made up, and how much memory models are
thought to need.
"""

import itertools
import json
from typing import Any

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from lr_sglang.config import Deployment, Runtime, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import built_in, load_deployment
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.launching.flags import Platform
from lr_sglang.runtimes.placement import gpus
from lr_sglang.runtimes.placement.memory import (
    LEAST_TOKENS,
    MAX_SHARE,
    OVERHEAD,
    Need,
    fits,
    place,
    runtime_need,
    with_places,
)
from tests.called import called

# GiB that are free on cards of 80, 141, 48 and 24 GB.
H100, H200, L40, A10 = 79.0, 139.0, 47.0, 22.0
QWEN = {"target": "Qwen/Qwen3-32B", "draft": "Qwen/Qwen3-1.7B", "judge": "Qwen/Qwen2.5-7B-Instruct"}
SMALL = {"target": "Qwen/Qwen3-8B", "draft": "Qwen/Qwen3-0.6B", "judge": "Qwen/Qwen2.5-7B-Instruct"}


def needs(models: dict[str, str]) -> dict[str, Need]:
    return needs_of({role: Runtime(model=model) for role, model in models.items()})


def needs_of(runtimes: dict[str, Runtime]) -> dict[str, Need]:
    return {role: runtime_need(runtime) for role, runtime in runtimes.items()}


# -- what models need


@pytest.mark.parametrize(
    ("model", "gib"),
    [
        ("Qwen/Qwen3-32B", 61.0),
        ("dummy:qwen3-1.7b", 3.2),
        ("Qwen/Qwen3-32B-FP8", 30.5),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 61.0),
        ("neuralmagic/DeepSeek-R1-Distill-Qwen-32B-FP8-dynamic", 30.5),
        ("Qwen/Qwen2.5-7B-Instruct", 14.2),
        ("someone/else-8B-v2", 14.9),
        ("Qwen/Qwen3.5-27B", 50.1),  # 27 billion parameters, image encoder apart
        ("Qwen/Qwen3.5-4B", 7.8),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 32.3),
        ("openai/gpt-oss-120b", 65.3),  # published: 60.8
        ("someone/else-0.5b-AWQ", 0.28),
    ],
)
def test_weights_follow_from_the_shape_or_the_name(model, gib):
    assert runtime_need(Runtime(model=model)).weights == pytest.approx(gib, rel=0.02)


def test_weights_follow_from_a_configuration_here(tmp_path):
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "intermediate_size": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    found = runtime_need(Runtime(model=str(tmp_path)))
    assert found.heads == 8 and found.token == pytest.approx(2 * 2 * 8 * 128 * 2 / 2**20)
    assert found.weights == pytest.approx(
        (2 * (4 * 1024**2 + 3 * 1024 * 4096) + 2 * 1000 * 1024) * 2 / 2**30
    )
    assert runtime_need(Runtime(model=str(tmp_path), dtype="float32")).weights == pytest.approx(
        2 * found.weights
    )
    assert runtime_need(Runtime(model=str(tmp_path), quantization="fp8")).weights == pytest.approx(
        found.weights / 2
    )


def test_a_token_layers_model_is_in_memory_too():
    alone, layer = (
        Runtime(model="Qwen/Qwen3-32B"),
        TokenLayer("standalone", draft_model="Qwen/Qwen3-0.6B"),
    )
    assert runtime_need(alone.replace(token_layer=layer)).weights == pytest.approx(
        runtime_need(alone).weights + 1.1, abs=0.1
    )


# -- placing


@pytest.mark.parametrize(
    ("models", "machine", "expected"),
    [
        (QWEN, [H100] * 4, [(0,), (1,), (2,)]),
        (QWEN, [H100] * 3, [(0,), (1,), (2,)]),
        (QWEN, [H100] * 2, [(0,), (1,), (1,)]),
        (QWEN, [H200], [(0,), (0,), (0,)]),
        (SMALL, [H100], [(0,), (0,), (0,)]),
        (SMALL, [L40] * 2, [(0,), (1,), (1,)]),
        ({"target": "Qwen/Qwen3-32B"}, [H100] * 2, [(0,)]),
    ],
)
def test_where_roles_go(models, machine, expected):
    assert [found.gpus for found in place(needs(models), machine).values()] == expected


def assert_room(found: dict[str, Any], machine: list[float], wanted: dict[str, Need]) -> None:
    """Each takes its share of what those before it left: its weights and states, and 16,384
    tokens.
    """
    free = list(machine)
    for role, where in found.items():
        (gpu,) = where.gpus or (0,)
        static, one = where.memory_fraction * free[gpu], wanted[role]
        assert one.weights + one.states + one.token * LEAST_TOKENS / 1024 <= static, role
        assert 0 < where.memory_fraction < 0.99
        free[gpu] -= static + OVERHEAD
    assert min(free) > -0.1


@pytest.mark.parametrize(
    ("models", "machine"), [(QWEN, [H200]), (QWEN, [H100] * 2), (SMALL, [L40]), (QWEN, [90, 120])]
)
def test_servers_that_share_a_gpu_leave_each_other_room(models, machine):
    assert_room(place(needs(models), machine), machine, needs(models))


def test_a_server_alone_on_a_gpu_gets_most_of_it():
    for where in place(needs(QWEN), [H100] * 4).values():
        assert where.memory_fraction == pytest.approx(MAX_SHARE, abs=1e-3)


@pytest.mark.parametrize(
    ("models", "machine", "said"),
    [
        (QWEN, [H100], "target and draft and judge need 97 GiB of a GPU that has 79 free"),
        (QWEN, [A10] * 2, "do not fit"),
        (QWEN, [L40] * 4, "target need"),
        ({"target": "Qwen/Qwen3-32B"}, [L40], "target need"),
        (QWEN, [], "no GPU"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(models, machine, said):
    with pytest.raises(ConfigError, match=rf"{said}.*\nHint: "):
        place(needs(models), machine)


# -- in a deployment


def deployment(**runtimes: Runtime) -> Deployment:
    return Deployment("made-up", runtimes)


def test_a_deployment_gets_places_and_keeps_what_it_says():
    given = deployment(
        target=Runtime(model=QWEN["target"]),
        draft=Runtime(model=QWEN["draft"], memory_fraction=0.3),
        judge=Runtime(url="http://there:1"),
    )
    found = with_places(given, [H100] * 3, {"target": True, "draft": True, "judge": False}).runtimes
    assert (found["target"].gpus, found["target"].tensor_parallel) == ((0,), 1)
    assert (found["draft"].gpus, found["draft"].memory_fraction) == ((1,), 0.3)
    assert found["judge"] == given.runtimes["judge"]


@pytest.mark.parametrize("several", [{"tensor_parallel": 2}, {"data_parallel": 2}])
def test_who_takes_several_gpus_is_told_to_name_them(several):
    given = deployment(target=Runtime(model=QWEN["target"], **several))
    with pytest.raises(
        ConfigError, match=r"it takes 2 GPUs .* names none.*\nHint: .*gpus = \[0, 1\]"
    ):
        with_places(given, [H100] * 4, {"target": True})


def test_gpus_that_are_named_are_left_to_whoever_names_them():
    given = deployment(
        target=Runtime(model=QWEN["target"]), draft=Runtime(model=QWEN["draft"], gpus=(0,))
    )
    found = with_places(given, [H100] * 2, {"target": True, "draft": True}).runtimes
    assert (found["target"].gpus, found["draft"]) == ((1,), given.runtimes["draft"])
    with pytest.raises(ConfigError, match="no GPU is left for target"):
        with_places(given, [H100], {"target": True})
    assert with_places(given, [], {}) is given


@pytest.mark.parametrize("name", [name for name in built_in() if "gpu" in name])
def test_every_preset_fits_the_machine_that_it_names(name):
    machine = [H100] * int(name.split("-")[1][0])
    assert fits(load_deployment(name), [H200] if name.endswith("-1gpu") else machine)
    assert not fits(load_deployment(name), machine[:-1])
    assert fits(load_deployment(name), [H100]) == name.endswith(("-fp8", "-80gb", "-24gb"))
    assert fits(load_deployment(name), [A10]) == name.endswith("-24gb")


@pytest.mark.parametrize(
    ("name", "free"),
    [("pocket-1gpu", H200), ("pocket-1gpu-80gb", H100), ("pocket-1gpu-24gb", A10)],
)
def test_the_shares_of_bodies_on_one_gpu_hold_weights_and_answers(name, free):
    runtimes = load_deployment(name).runtimes
    assert_room(runtimes, [free], needs_of(runtimes))


@pytest.mark.parametrize(
    "name",
    [name for name in built_in() if load_deployment(name).runtimes["target"].device == "cuda"],
)
@pytest.mark.parametrize("machine", [[H200], [H100, H100]], ids=["one H200", "two H100"])
def test_a_preset_that_names_no_gpus_fits_what_it_says(name, machine):
    """On one GPU with its token layers, whose heads and drafted states are in memory too."""
    given = load_deployment(name)
    assert not fits(given, [H100]) and not fits(given, [])
    if len(machine) > 1:
        plain = {role: one.replace(token_layer="none") for role, one in given.runtimes.items()}
        given = given.replace(runtimes=plain)
    assert fits(given, machine)
    found = with_places(given, machine, dict.fromkeys(given.runtimes, True)).runtimes
    assert_room(found, machine, needs_of(found))


def test_the_states_of_a_hybrid_are_in_memory_too():
    """48 layers of 48 heads, each a matrix of 128 x 128 in float32, and the convolution's last
    three inputs in 16 bits: 147 MiB a state, five for a running request.
    """
    target = Runtime(model="Qwen/Qwen3.5-27B", max_running_requests=10)
    state = 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2) / 2**30
    assert runtime_need(target).states == pytest.approx(51 * state)
    drafted = target.replace(token_layer=TokenLayer("ngram", tokens=4))
    assert runtime_need(drafted).states == pytest.approx((51 + 11 * 5) * state)
    assert runtime_need(Runtime(model="Qwen/Qwen3-32B")).states == 0
    assert (
        runtime_need(target).token == 2 * 16 * 4 * 256 * 2 / 2**20
    )  # 16 layers have keys and values


# A configuration with layer types, and one as transformers writes it, with the text model inside.
TYPES = ["linear_attention"] * 3 + ["full_attention"]
HYBRID = {
    **{"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": TYPES},
    **{"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4},
}


CUDA, CPU = Platform("cuda"), Platform("cpu", {"max-running-requests": 32})
UNBOUND = {"max_running_requests": None}


@pytest.mark.parametrize("config", [HYBRID, {"text_config": HYBRID}], ids=["flat", "inside"])
@pytest.mark.parametrize(
    ("platform", "changes", "flag", "value"),
    [
        (CUDA, {}, "max-mamba-cache-size", "40"),
        (CUDA, {}, "mamba-track-interval", "64"),
        (CUDA, {}, "mamba-radix-cache-strategy", None),
        (CUDA, UNBOUND, "max-mamba-cache-size", None),
        (CPU, {}, "max-mamba-cache-size", "24"),
        (CPU, UNBOUND, "max-mamba-cache-size", "96"),
        (CPU, {}, "mamba-radix-cache-strategy", "no_buffer"),
        (CUDA, {"extra": {"mamba-track-interval": 256}}, "mamba-track-interval", "256"),
        (CUDA, {"model": QWEN["target"]}, "max-mamba-cache-size", None),
        (CUDA, {"model": QWEN["target"]}, "mamba-track-interval", None),
        (CPU, {"model": QWEN["target"]}, "mamba-radix-cache-strategy", None),
    ],
)
def test_a_hybrid_gets_its_flags_by_its_configuration(
    tmp_path, config, platform, changes, flag, value
):
    (tmp_path / "config.json").write_text(json.dumps(config))
    runtime = Runtime(model=str(tmp_path), max_running_requests=8).replace(**changes)
    line = itertools.pairwise(flags.command(runtime, 1, platform).argv)
    assert dict(line).get(f"--{flag}") == value


# -- what nvidia-smi says

TABLE = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 81000, 580.95.05
1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 40000, 580.95.05
2, GPU-cccc, NVIDIA H200, 143771, 143000, 580.95.05
3, GPU-dddd, split in parts, [N/A], [N/A], 580.95.05
"""


@pytest.mark.parametrize(
    ("allowed", "free"),
    [
        (None, [79, 39, 140]),
        ("2,0", [140, 79]),
        ("GPU-bb", [39]),
        ("0,7,1", [79]),
        ("", []),
        ("-1", []),
    ],
)
def test_gpus_are_those_that_we_may_see(allowed, free):
    assert [round(gpu.free) for gpu in gpus.read_gpus(TABLE, allowed)] == free


# -- commands for a machine that is not this one


def printed(*words, code=0):
    return called("launch", *words, "--print", code=code)


def servers(*words):
    return json.loads(printed(*words, "--json").stdout)["servers"]


def flag(server, name):
    return dict(itertools.pairwise(server["argv"])).get(f"--{name}")


@pytest.mark.parametrize(
    ("text", "free"),
    [("4x80", [78.4] * 4), ("141", [138.18]), ("2x80GB, 1x24", [78.4, 78.4, 23.52])],
)
def test_a_machine_is_described_by_its_gpus(text, free):
    assert [gpu.free for gpu in gpus.described(text)] == pytest.approx(free)


@pytest.mark.parametrize("text", ["", "x", "0x80", "4x", "4x0", "-1x80", "four", "4x80,"])
def test_what_describes_no_gpus_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="describes no GPUs"):
        gpus.described(text)


def test_gpus_are_of_printed_commands_only():
    assert "goes with --print" in called("launch", "qwen3-1gpu", "--gpus", "1x141", code=2).output


def test_commands_for_a_described_machine_have_devices_fractions_order_and_ports(here, monkeypatch):
    """Whatever this machine has, and at every call the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    found = servers("qwen3.5-27b", "--gpus", "2x80")
    assert found == servers("qwen3.5-27b", "--gpus", "2x80")
    devices = {role: one["env"]["CUDA_VISIBLE_DEVICES"] for role, one in found.items()}
    assert devices == {"target": "0", "draft": "1", "judge": "1"}
    assert {role: one["after"] for role, one in found.items()} == {
        "target": [],
        "draft": [],
        "judge": ["draft"],
    }
    assert [flag(one, "port") for one in found.values()] == ["30000", "30001", "30002"]
    assert all(0 < float(flag(one, "mem-fraction-static")) < 1 for one in found.values())
    text = printed("qwen3.5-27b", "--gpus", "2x80").stdout
    assert "# judge, GPU 1: starts when draft is ready, since its memory fraction is" in text


def test_a_port_that_is_given_is_nobody_elses():
    found = servers("qwen3-1gpu", "--gpus", "1x141", "-o", "runtimes.draft.port=30000")
    assert [flag(one, "port") for one in found.values()] == ["30003", "30000", "30002"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("qwen3-4gpu", "--gpus", "2x80"), "gpus = [2], but the machine has 2"),
        (("qwen3-4gpu", "--gpus", "4x24"), "target needs"),
        (("qwen3.5-27b", "--gpus", "1x80"), "do not fit"),
        (("qwen3.5-27b", "--gpus", "2x80", "--concurrency", "8"), "--concurrency 4 fits"),
    ],
)
def test_what_does_not_fit_a_described_machine_is_refused(words, said):
    assert said in " ".join(printed(*words, code=2).output.split())


@pytest.mark.parametrize("name", [one for one in built_in() if "pocket" not in one])
@pytest.mark.parametrize("layered", [False, True])
def test_presets_have_room_for_what_launch_starts_by_default(name, layered, monkeypatch):
    """The states of all requests that the printed command admits are in memory too; fewer answers
    at a time are said.
    """
    machine = ["1x80", "2x80", "4x80", "1x141"]
    wanted = ["--mode", "lookahead+sd"] if layered else []
    free: list[float] = []
    for one in machine:
        words = ["launch", name, "--print", "--json", "--gpus", one, *wanted]
        command = CliRunner().invoke(cli, words)
        if command.exit_code == 0:
            free = [gpu.free for gpu in gpus.described(one)]
            break
    assert free, "it fits on one of these machines"
    told = [line for line in command.stderr.splitlines() if "room for" in line]
    found = json.loads(command.stdout)["servers"]
    given = load_deployment(name).runtimes
    runtimes = {}
    for role, server in found.items():
        layer = given[role].token_layer if layered else TokenLayer()
        runtimes[role] = given[role].replace(
            token_layer=layer,
            max_running_requests=int(flag(server, "max-running-requests")),
            gpus=tuple(map(int, server["env"]["CUDA_VISIBLE_DEVICES"].split(","))),
        )
    assert fits(Deployment("printed", runtimes), free)
    answers = (runtimes["target"].max_running_requests - 2) // 6
    assert (answers < 8) == bool(told)


def test_a_large_model_on_this_machines_cpu_is_not_printed_without_a_word(monkeypatch):
    monkeypatch.setattr(flags, "_gpus", lambda: 0)
    large = printed("--target", QWEN["target"], "--draft", QWEN["draft"], "--judge", "target")
    said = " ".join(large.stderr.split())
    assert "target: on the CPU its weights take 122 GiB in float32, and this machine has" in said
    assert "--gpus 4x80" in said
    assert "on the CPU" not in printed("pocket").stderr
    unplaced = " ".join(printed("qwen3.5-27b").stderr.split())
    assert "target, draft, judge: no GPU is seen here" in unplaced


def test_lossless_on_a_gpu_says_what_repeatable_is_for():
    words = ("qwen3-4gpu", "--gpus", "4x80", "--mode", "lossless")
    assert "seeds count there only with repeatable = true" in " ".join(
        printed(*words).stderr.split()
    )
    assert "repeatable" not in printed(*words, "-o", "runtimes.target.repeatable=true").stderr
    assert "repeatable" not in printed(*words[:-1], "lookahead").stderr
    assert "repeatable" not in printed("pocket", "--mode", "lossless").stderr
