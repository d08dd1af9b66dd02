"""The example deployments as SGLang reads them: its own ``ServerArgs``, built from our command
lines for GPUs.

SGLang's import takes ten seconds, so everything is asked in one process, which sees no GPU whatever
the machine has: what is resolved without one is compared.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lr_sglang.cli.settings import settle
from lr_sglang.config import Deployment
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.launching import flags, fleet
from tests import FULL

ROOT = Path(__file__).parents[2]
# In a short run: the examples with token layers, and a preset of every kind.
FEW = {"qwen3-ngram", "qwen3-standalone", "qwen3-eagle3", "pocket-1gpu", "qwen3-4gpu"}
PRESETS = [
    path
    for path in sorted((ROOT / "lr_sglang" / "runtimes" / "presets").glob("*.toml"))
    if FULL or path.stem in FEW
]
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples" / "deployments").glob("*.toml")) + PRESETS
    if (FULL or path.stem in FEW)
    # what runs elsewhere has no command line here
    and not load_deployment(path).runtimes["target"].url
]
FOUR = ("autoregressive", "sd", "lookahead", "lookahead+sd")

# Where the hub is out of reach: the same architectures.
SHAPES = {
    "Qwen/Qwen3-32B": "dummy:qwen3-32b",
    "Qwen/Qwen3-1.7B": "dummy:qwen3-1.7b",
    "Qwen/Qwen3-0.6B": "dummy:qwen3-0.6b",
    "Qwen/Qwen3-32B-FP8": "dummy:qwen3-32b",
    "Qwen/Qwen2.5-7B-Instruct": "dummy:qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "dummy:deepseek-r1-distill-qwen-32b",
    "neuralmagic/DeepSeek-R1-Distill-Qwen-32B-FP8-dynamic": "dummy:deepseek-r1-distill-qwen-32b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "dummy:deepseek-r1-distill-qwen-1.5b",
    "AngelSlim/Qwen3-32B_eagle3": "dummy:qwen3-32b-eagle3",
}
FIELDS = (
    *(
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    ),
    *(
        "speculative_draft_model_path",
        "speculative_draft_load_format",
        "load_format",
        "attention_backend",
    ),
    *("max_running_requests", "disable_radix_cache", "tp_size"),
)

# What asks SGLang: argument lists by name come in; resolved fields, and asked-for ones that were
# changed, go out.
ASK = """
import argparse, gc, json, sys
gc.disable()  # a third of the time of these imports
from sglang.srt.server_args import ServerArgs, prepare_server_args
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = {}
for name, (argv, fields) in json.load(sys.stdin).items():
    try:
        asked, got = vars(parser.parse_args(argv)), prepare_server_args(argv)
        if hasattr(got, "resolve_once"):  # since 0.5.23 a launcher asks for it
            from sglang.srt.arg_groups.model_override_base import resolved_view
            got.resolve_once()
            got = resolved_view(got)
        given = {a.dest for a in parser._actions if set(a.option_strings) & set(argv)}
        changed = {d: [asked[d], getattr(got, d)] for d in given if hasattr(got, d) and asked[d] != getattr(got, d)}
        found[name] = {"fields": {f: getattr(got, f) for f in fields}, "changed": changed}
    except (Exception, SystemExit) as error:
        found[name] = {"refused": f"{type(error).__name__}: {error}"}
json.dump(found, open(sys.argv[1], "w"))
"""


def lines(deployment: Deployment) -> dict[str, list[str]]:
    """The command line of every server, made as ``launch`` makes it, on a machine with
    four GPUs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "_gpus", lambda: 4)
        made = fleet.Fleet(deployment)
        for role, runtime in deployment.runtimes.items():
            with ExitStack() as ports:
                fleet._prepare(made, role, runtime, ROOT / "logs", ports)
    found = {}
    for role, server in made.servers.items():
        words = list(server.argv)
        found[role] = words[words.index("sglang.launch_server") + 1 :]
    return found


def shaped(deployment: Deployment) -> Deployment:
    """With shapes in place of the models of the hub."""
    runtimes = {}
    for role, runtime in deployment.runtimes.items():
        layer = runtime.token_layer
        draft = SHAPES.get(layer.draft_model, layer.draft_model)
        model = runtime.model if runtime.model.startswith("pocket:") else SHAPES[runtime.model]
        runtimes[role] = runtime.replace(model=model, token_layer=layer.replace(draft_model=draft))
    return deployment.replace(runtimes=runtimes)


def plan_of(path: Path, modes: tuple[str, ...] = FOUR):
    return settle({"deployment": str(path), "mode": modes})


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def answers(cache, tmp_path_factory) -> dict[str, Any]:
    """What SGLang made of everything."""
    asked = {}
    for path in EXAMPLES:
        plan = plan_of(path)
        for modes in plan.server_sets(FOUR):
            for role, line in lines(shaped(plan.needed(modes))).items():
                asked[f"{path.stem} {modes[0]} {role}"] = line
    out = tmp_path_factory.mktemp("answers") / "answers.json"
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, str(out)],
        input=json.dumps({name: (line, FIELDS) for name, line in asked.items()}),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {"asked": asked, **json.loads(out.read_text())}


# -- what the examples become

LAYERS = {
    ("qwen3-ngram", "target"): ("NGRAM", None, None, 9, None, None),
    ("qwen3-ngram", "draft"): ("NGRAM", None, None, 9, None, None),
    ("qwen3-standalone", "target"): ("STANDALONE", 4, 1, 5, "qwen3-0.6b", None),
    ("qwen3-eagle3", "target"): ("EAGLE3", 5, 4, 8, "qwen3-32b-eagle3", "triton"),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_sglang_takes_every_example_as_it_is(path, answers):
    mine = [name for name in answers["asked"] if name.split()[0] == path.stem]
    assert {name.split()[2] for name in mine} == {"target", "draft", "judge"}
    runtimes = load_deployment(path).runtimes
    for name in mine:
        assert "refused" not in answers[name], (name, answers[name])
        assert answers[name]["changed"] == {}, name
        assert not answers[name]["fields"]["disable_radix_cache"], name
        # SGLang chooses how to attend by GPU and by token layer; a file may name it, or ask for
        # repeatable.
        argv, runtime = answers["asked"][name], runtimes[name.split()[2]]
        named = runtime.extra.get("attention-backend") or ("triton" if runtime.repeatable else None)
        assert dict(itertools.pairwise(argv)).get("--attention-backend") == named
        assert not [flag for flag in argv if "sampling-backend" in flag]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_sglang_chooses_how_a_preset_attends_and_both_layers_fit(path, answers):
    for name in (name for name in answers["asked"] if name.split()[0] == path.stem):
        fields, (_, mode, role) = answers[name]["fields"], name.split()
        assert "--attention-backend" not in answers["asked"][name]
        pocket = path.stem.startswith("pocket")
        layer = {"target": "STANDALONE"} if pocket else {"target": "NGRAM", "draft": "NGRAM"}
        assert fields["speculative_algorithm"] == (layer.get(role) if mode == "sd" else None), name
        assert fields["load_format"] == ("private" if pocket else "dummy")
        assert fields["tp_size"] == (2 if path.stem.endswith("-4gpu") and role == "target" else 1)


@pytest.mark.parametrize(("stem", "role"), LAYERS, ids=str)
@pytest.mark.parametrize("layered", [True, False], ids=["layered", "plain"])
def test_the_resolved_fields(stem, role, layered, answers):
    fields = answers[f"{stem} {'sd' if layered else 'autoregressive'} {role}"]["fields"]
    algorithm, steps, topk, tokens, draft, attention = LAYERS[stem, role]
    line = answers["asked"][f"{stem} {'sd' if layered else 'autoregressive'} {role}"]
    assert ("--attention-backend" in line) == (attention is not None)
    assert attention in (None, fields["attention_backend"])
    assert fields["load_format"] == "dummy"
    assert fields["tp_size"] == (2 if role == "target" else 1)
    # For one answer at a time: what lookahead has in flight, not the 48 that SGLang allows with a
    # token layer.
    assert fields["max_running_requests"] == {"target": 8, "draft": 3}[role]
    if not layered:
        assert not any(fields[name] for name in FIELDS[:6])
        return
    assert fields["speculative_algorithm"] == algorithm
    assert fields["speculative_num_draft_tokens"] == tokens
    if draft is None:
        # SGLang's own, of which its n-gram worker uses the breadth only
        assert (fields["speculative_eagle_topk"], fields["speculative_num_steps"]) == (10, 0)
        return
    assert (fields["speculative_num_steps"], fields["speculative_eagle_topk"]) == (steps, topk)
    assert Path(fields["speculative_draft_model_path"]).name == draft
    assert fields["speculative_draft_load_format"] == "dummy"
