"""The example deployments as SGLang reads them: its own ``ServerArgs``, built from our command
lines for GPUs.

SGLang's import takes ten seconds, so everything is asked in one process, which sees no GPU whatever
the machine has: what is resolved without one is compared.
"""

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from lr_sglang.cli.settings import settle
from lr_sglang.config import Deployment
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.launching import flags, fleet
from tests import FULL, ROOT

# In a short run: the examples with token layers, and a preset of every kind.
FEW = {
    *("qwen3-ngram", "qwen3-standalone", "qwen3-eagle3", "pocket-1gpu", "qwen3-4gpu"),
    *("qwen3.5-27b", "gpt-oss-120b"),
}
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
    "AngelSlim/Qwen3-1.7B_eagle3": "dummy:qwen3-1.7b-eagle3",
    "Qwen/Qwen3.5-27B": "dummy:qwen3.5-27b",
    "Qwen/Qwen3.6-27B": "dummy:qwen3.6-27b",
    "Qwen/Qwen3.5-4B": "dummy:qwen3.5-4b",
    "Qwen/Qwen3.5-0.8B": "dummy:qwen3.5-0.8b",
    "Qwen/Qwen3.6-35B-A3B": "dummy:qwen3.6-35b-a3b",
    "openai/gpt-oss-120b": "dummy:gpt-oss-120b",
    "openai/gpt-oss-20b": "dummy:gpt-oss-20b",
    # heads, of which the length of a block is read, else 16
    "z-lab/Qwen3.5-27B-DFlash": "dummy:qwen3-1.7b",
    "z-lab/Qwen3.6-27B-DFlash": "dummy:qwen3-1.7b",
    "z-lab/Qwen3.5-4B-DFlash": "dummy:qwen3-0.6b",
    "z-lab/Qwen3.6-35B-A3B-DFlash": "dummy:qwen3-0.6b",
    "z-lab/gpt-oss-120b-DFlash": "dummy:qwen3-0.6b",
    "z-lab/gpt-oss-20b-DFlash": "dummy:qwen3-0.6b",
}
# What asks SGLang: argument lists by name come in; whether prompts are cached, and the fields asked
# for that were changed, go out.
ASK = """
import argparse, gc, json, sys
gc.disable()  # a third of the time of these imports
from sglang.srt.arg_groups import mamba_hook
from sglang.srt.layers import quantization
from sglang.srt.server_args import ServerArgs, prepare_server_args
# what only a process that sees a GPU has
mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
quantization.QUANTIZATION_METHODS.setdefault("mxfp4", quantization.Mxfp4Config)
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = {}
for name, argv in json.load(sys.stdin).items():
    try:
        asked, got = vars(parser.parse_args(argv)), prepare_server_args(argv)
        if hasattr(got, "resolve_once"):  # since 0.5.23 a launcher asks for it
            from sglang.srt.arg_groups.model_override_base import resolved_view
            got.resolve_once()
            got = resolved_view(got)
        given = {a.dest for a in parser._actions if set(a.option_strings) & set(argv)}
        changed = {d: [asked[d], getattr(got, d)] for d in given if hasattr(got, d) and asked[d] != getattr(got, d)}
        found[name] = {"cached": not got.disable_radix_cache, "changed": changed}
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
        servers = fleet.prepared(deployment, ROOT / "logs")
    found = {}
    for role, server in servers.items():
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
        plan = settle({"deployment": str(path), "mode": FOUR})
        for modes in (FOUR[::2], FOUR[1::2]):
            for role, line in lines(shaped(plan.needed(modes))).items():
                asked[f"{path.stem} {modes[0]} {role}"] = line
    out = tmp_path_factory.mktemp("answers") / "answers.json"
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, str(out)],
        input=json.dumps(asked),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {"asked": asked, **json.loads(out.read_text())}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_sglang_takes_every_example_as_it_is(path, answers):
    mine = [name for name in answers["asked"] if name.split()[0] == path.stem]
    assert {name.split()[2] for name in mine} == {"target", "draft", "judge"}
    runtimes = load_deployment(path).runtimes
    for name in mine:
        assert "refused" not in answers[name], (name, answers[name])
        assert answers[name]["changed"] == {}, name
        assert answers[name]["cached"], name
        # SGLang chooses how to attend by GPU and by token layer; a file may name it, or ask for
        # repeatable.
        argv, runtime = answers["asked"][name], runtimes[name.split()[2]]
        named = runtime.extra.get("attention-backend") or ("triton" if runtime.repeatable else None)
        assert dict(itertools.pairwise(argv)).get("--attention-backend") == named
        assert not [flag for flag in argv if "sampling-backend" in flag]
