"""examples/reproduce: its file and its commands agree."""

import json
import shlex

import pytest

from tests import ROOT
from tests.called import called
from tests.commands import parsed

FOLDER = ROOT / "examples" / "reproduce"
PAGE = (FOLDER / "README.md").read_text("utf-8")
FILE = FOLDER / "deployment.toml"
COMMANDS = [
    shlex.split(line.strip())[1:]
    for line in PAGE.splitlines()
    if line.strip().startswith("lr-sglang ")
]
BENCHES = [words for words in COMMANDS if words[0] == "bench"]


@pytest.mark.parametrize("machine", ["4x141", "4x80"])
def test_the_servers_are_printed_for_the_machine_of_the_table(here, machine):
    words = ("launch", FILE, "--print", "--json", "--gpus", machine, "--with-token-layer")
    found = json.loads(called(*words).stdout)["servers"]
    devices = {role: one["env"]["CUDA_VISIBLE_DEVICES"] for role, one in found.items()}
    assert devices == {"target": "0,1", "draft": "2", "judge": "3"}
    assert not any(one["after"] for one in found.values())
    line = {role: " ".join(one["argv"]) for role, one in found.items()}
    assert "--model-path Qwen/Qwen3-32B " in line["target"] and "--tp-size 2" in line["target"]
    for role in ("target", "draft"):
        assert "NGRAM --speculative-num-draft-tokens 7" in line[role]
    assert "NGRAM" not in line["judge"]
    assert "--mem-fraction-static 0.7" in line["judge"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_one_that_there_is(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    parsed(words)


@pytest.mark.parametrize("words", BENCHES, ids=" ".join)
def test_a_benchmark_is_planned_as_the_page_says(words, here):
    """With questions that are here, in place of the hub's."""
    (here / "examples").symlink_to(ROOT / "examples")
    questions = here / "aime24.jsonl"
    lines = [{"question": f"{number}?", "answer": str(number)} for number in range(30)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    at = words.index("--task")
    given = [*words[:at], "--input", str(questions), *words[at + 2 :], "--print", "--json"]
    said = json.loads(called(*given).stdout)
    kinds = {name: one["config"] for name, one in said["variants"].items()}
    assert said["samples"] == 480 * len(kinds)
    for name, config in kinds.items():
        assert config["limits"]["max_tokens"] == 38912, name
        if config["lookahead"]:
            assert config["lookahead"]["depth"] == 4, name
            layers = {role: one.get("token_layer") for role, one in config["runtimes"].items()}
            layered = name.endswith("+sd")
            assert bool(layers["target"] and layers["target"]["algorithm"] == "ngram") == layered
