"""The command line: what it accepts, which setting wins, what it prints, and how it fails. No
server is started.
"""

import errno
import gc
import itertools
import json
import os
import re
import threading
import types
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest

from lr_sglang.api import session
from lr_sglang.cli import COMMANDS, options, settings
from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.client import Client, status_error
from lr_sglang.engine.doubts import JudgeCheck
from lr_sglang.errors import ConfigError, LaunchError, PromptTooLong, RuntimeDown, RuntimeTimeout
from lr_sglang.programs.judge import PROMPTS
from lr_sglang.runtimes import attach
from lr_sglang.runtimes.launching import flags, probe
from lr_sglang.runtimes.launching.server import ProgressEvent
from lr_sglang.sglang_api import release
from lr_sglang.user_programs.program import ProgramError
from tests import records
from tests.called import called
from tests.scripted import ScriptedTransport
from tests.scripted_cli import transports
from tests.stub import Handler, Stub

FAST = ["run", "how many?"]
LAYERED = ["--mode", "lossless", "--token-layer", "ngram"]
PLAN = ["plan", "--alpha", "0.63", "--c1", "0.1"]


@pytest.fixture
def call(servers, monkeypatch):
    """Calls the command line in a folder of its own."""
    # the scripted judge says one character, which is no label: it would be told of
    monkeypatch.setattr(JudgeCheck, "shown_alike", lambda *_: None)
    return called


# -- help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example(call, name):
    result = call(name, "--help")
    assert "Examples:" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


def test_the_version_is_the_packages(call):
    said = call("--version").output
    assert said.startswith("lr-sglang, version ") and f"SGLang {release.version()} (tested)" in said


@pytest.mark.parametrize("given", ["", "memory_fraction = 0.2"])
def test_launch_warns_of_a_server_that_takes_the_memory_of_another(call, tmp_path, given):
    where = "device = 'cuda'\ngpus = [1]"
    roles = (
        f"[runtimes.{role}]\nmodel = 'Qwen/Qwen3-0.6B'\n{where}" for role in ("draft", "judge")
    )
    target = "[runtimes.target]\nmodel = 'Qwen/Qwen3-8B'\ndevice = 'cuda'\ngpus = [0]"
    (tmp_path / "two.toml").write_text(f"\n{given}\n".join([target, *roles]))
    result = call("launch", "two.toml", "--print")
    assert ("share GPU 1, and draft has no memory_fraction" in result.stderr) is (not given)


# -- one question


def test_one_question_prints_its_steps_and_leaves_a_record(call, tmp_path):
    result = call(*FAST, "--verifier", "exact")
    assert [line[0] for line in result.stdout.splitlines()] == ["+", "~", "+", "+"]
    assert "answer: 17" in result.stderr
    assert "1 of" not in result.stdout
    (record,) = records(tmp_path / "runs")
    assert record["text"].startswith("First this.\n\nThen that.")
    assert (record["answer"], record["correct"], record["mode"]) == ("17", None, "lookahead")
    assert record["config"]["lookahead"]["verifier"] == "exact"
    assert "alpha 0.75 (3 of 4), " in result.stderr
    by_program = call(*FAST, "--program", "specreason:threshold=0").stderr
    assert "alpha" not in by_program and " wasted, " in by_program  # it compares nothing


def test_quiet_prints_the_answer_alone(call):
    result = call(*FAST, "--quiet", "--mode", "autoregressive")
    assert (
        result.stdout
        == "First this.\n\nThen that.\n\nAnd so on.\n\nSo the answer is \\boxed{17}.\n"
    )
    assert result.stderr == ""


@pytest.mark.parametrize(
    "raw",
    [
        "naïve?\nYes?\n".encode(),
        b"\xef\xbb\xbf" + "naïve?\r\nYes?\r\n".encode(),
        "naïve?\r\nYes?\r\n".encode("utf-16"),
        "naïve?\rYes?".encode(),
    ],
)
@pytest.mark.parametrize("way", ["-", "argument", "question,answer"])
def test_every_way_in_reads_a_question_alike(call, tmp_path, raw, way):
    if way == "-":
        call("run", "-", "--quiet", input=raw)
    elif way == "argument" and b"\0" in raw:
        return  # an argument has no zero byte
    elif way == "argument":
        call("run", os.fsdecode(raw), "--quiet")
    else:
        wide = b"\0" in raw
        text = raw.decode("utf-16" if wide else "utf-8-sig").rstrip("\r\n")
        table = f'question,answer\r\n"{text}",7\r\n'
        (tmp_path / "q.csv").write_bytes(table.encode("utf-16" if wide else "utf-8-sig"))
        call("run", "--input", "q.csv", "--quiet")
    assert records(tmp_path / "runs")[0]["question"] == "naïve?\nYes?"


def test_standard_input_that_is_no_utf_8_is_a_named_error(call):
    assert "the question is not UTF-8 text" in call("run", "-", input=b"na\xefve?", code=2).stderr
    assert "the question is empty" in call("run", "-", input=b"\xef\xbb\xbf\r\n", code=2).stderr


def test_a_models_text_does_not_command_the_terminal(call, servers):
    servers.transports["target"] = ScriptedTransport(
        lambda text, sampling: "a\x1b[2Jb [bold]c[/bold] \x9b1m\x07d\x03"
    )
    assert call(*FAST, "--mode", "autoregressive").stdout == "| a[2Jb [bold]c[/bold] 1md\n"


# -- many questions


def test_many_questions_end_in_a_table(call, tmp_path):
    result = call("run", "--task", "pocket", "--limit", 3, "--samples", 2, "--concurrency", 2)
    for name in ("accuracy", "alpha", "tokens/s", "wasted", "reuse"):
        assert name in result.stdout
    made = records(tmp_path / "runs")
    assert sorted((r["question_id"], r["sample"]) for r in made) == [
        (f"pocket-000{n}", s) for n in (1, 2, 3) for s in (0, 1)
    ]
    assert {r["correct"] for r in made} == {True, False}
    assert len({r["branches"][0]["seed"] for r in made}) == 6


@pytest.mark.parametrize("limit", [1, 2])
def test_json_has_the_records_of_one_question_and_of_many(call, tmp_path, limit):
    result = call("run", "--task", "pocket", "--limit", limit, "--json")
    assert list(map(json.loads, result.stdout.splitlines())) == records(tmp_path / "runs")
    assert len(records(tmp_path / "runs")) == limit and result.stderr == ""


def test_a_file_of_questions_gets_the_instruction_and_that_is_told(call, tmp_path, servers):
    (tmp_path / "some.jsonl").write_text('{"question": "how many?", "answer": 17}\n')
    asked = ("run", "--input", "some.jsonl", "--verifier", "exact")
    said = " ".join(call(*asked).stderr.split())
    sent = "".join(map(chr, servers.transports["target"].requests[0]["input_ids"]))
    assert "how many?\nPlease reason step by step" in sent
    assert "every question ends with: Please reason step by step" in said
    assert "-o run.prompt_suffix=TEXT" in said
    bare = call(*asked, "-o", "run.prompt_suffix=", "--output", "bare").stderr
    sent = "".join(map(chr, servers.transports["target"].requests[-1]["input_ids"]))
    assert "Please" not in sent and "ends with" not in bare
    assert "ends with" not in call(*FAST, "--verifier", "exact").stderr


def test_a_mode_that_is_compared_has_the_servers_to_itself(call, tmp_path, servers, monkeypatch):
    compared = ("run", "--mode", "autoregressive", "--mode", "lookahead")
    file, seen, target = tmp_path / "my.jsonl", [], servers.transports["target"]
    file.write_text("".join(f'{{"question": "{n}?"}}\n' for n in range(6)), "utf-8")
    get = target.get
    monkeypatch.setattr(target, "get", lambda path, *rest: (seen.append(path), get(path))[1])
    call(*compared, "--input", file, "--limit", 3, "--output", tmp_path / "one")
    assert seen.count("/flush_cache?timeout=5") == 6, "no mode finds the question in the cache"
    seen.clear()
    call(*compared, "--input", file, "--concurrency", 3, "--output", tmp_path / "several")
    assert seen.count("/flush_cache?timeout=5") == 2
    turns = [
        mode
        for mode, _ in itertools.groupby(record["mode"] for record in records(tmp_path / "several"))
    ]
    assert sorted(turns) == ["autoregressive", "lookahead"], "no mode is slowed down by another"
    seen.clear()
    call("run", "--input", file, "--output", tmp_path / "alone")
    assert not [path for path in seen if "flush" in path], (
        "where nothing is compared the caches are of use"
    )


def test_demo_compares_all_modes_on_two_sets_of_servers(call, tmp_path, servers):
    result = call("demo", "--questions", 2)
    assert "speed-up" in result.stdout and "Does looking ahead pay" in result.stdout
    modes = ("autoregressive", "lookahead", "sd", "lookahead+sd")
    answered = [line.split("  ")[:2] for line in result.stdout.splitlines()]
    assert answered[:8] == [
        [f"pocket-000{n}", mode] for two in (modes[:2], modes[2:]) for n in (1, 2) for mode in two
    ]
    assert [r["mode"] for r in records(tmp_path / "runs")] == [*modes[:2] * 2, *modes[2:] * 2]
    assert len(servers.started) == 2
    first, second, third = result.stdout.splitlines()[8:11]
    in_order = "autoregressive {0}, sd {0}, lookahead {0}, lookahead+sd {0}"
    assert re.fullmatch(re.escape("2 problems: " + in_order).replace(r"\{0\}", r"\d+\.\d s"), first)
    right = sum(r["correct"] for r in records(tmp_path / "runs") if r["mode"] == "sd")
    assert second == "right of 2: " + in_order.format(right)
    assert third.startswith("fastest: ")


def test_the_small_demo_compares_two_modes(call, tmp_path):
    call("demo", "--small", "--questions", 1)
    assert [r["mode"] for r in records(tmp_path / "runs")] == ["autoregressive", "lookahead"]


def test_modes_side_by_side_share_servers_where_they_can(call, tmp_path, servers):
    modes = [
        word
        for mode in ("autoregressive", "sd", "lookahead", "lookahead+sd")
        for word in ("--mode", mode)
    ]
    result = call(
        "run",
        "--task",
        "pocket",
        "--limit",
        2,
        *modes,
        "--token-layer",
        "ngram",
        "--concurrency",
        3,
    )
    assert [d.runtimes["target"].token_layer.algorithm for d in servers.started] == [
        "none",
        "ngram",
    ]
    assert (
        "draft" in servers.started[0].runtimes
        and servers.started[0].runtimes["target"].max_running_requests == 3 * 5 + 2
    )
    made = records(tmp_path / "runs")
    assert sorted((r["question_id"], r["mode"]) for r in made) == sorted(
        (f"pocket-000{n}", mode) for n in (1, 2) for mode in modes[1::2]
    )
    for record in made:
        layered = record["mode"].endswith("sd")
        assert bool(record["tokens"]["target"]["sd"]["verified"]) == layered
        assert any(branch["sd"] for branch in record["branches"]) == layered
        assert (
            record["config"]["runtimes"]["target"]["token_layer"]["algorithm"] == "ngram"
        ) == layered
    assert "Runtimes" in result.stdout and "speed-up" in result.stdout
    assert "…" not in result.stdout


# -- which setting wins


FILE = """
judge_prompt = "pocket"
[runtimes.target]
model = "Qwen/Qwen3-8B"
[runtimes.draft]
model = "Qwen/Qwen3-0.6B"
[sampling]
temperature = 0.3
[lookahead]
depth = 9
schedule = "sync"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return str(path)


POCKET = {"target", "draft", "judge"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # the command line over the file over the model family over defaults
        ({"deployment": "FILE", "depth": 3}, {"lookahead.depth": 3, "lookahead.schedule": "sync"}),
        (
            {"deployment": "FILE", "top_p": 0.5},
            {"sampling.temperature": 0.3, "sampling.top_p": 0.5},
        ),
        (
            {"deployment": "FILE"},
            {"sampling.top_k": 20, "sampling.seed": 0, "lookahead.max_step_tokens": 100},
        ),
        ({"deployment": "FILE", "temperature": 0.0}, {"sampling.temperature": 0.0}),
        ({"half_sentence_guard": False}, {"lookahead.half_sentence_guard": False}),
        # makers' advice
        ({"target": "Qwen/Qwen3-32B"}, {"sampling.temperature": 0.6, "sampling.top_k": 20}),
        (
            {"target": "/models/DeepSeek-R1-Distill-Qwen-7B"},
            {"sampling.top_p": 0.95, "sampling.top_k": -1},
        ),
        ({"target": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"}, {"sampling.top_k": -1}),
        (
            {"target": "Qwen/Qwen3.6-27B-FP8"},
            {"sampling.temperature": 1.0, "sampling.top_k": 20, "limits.max_tokens": 81920},
        ),
        ({"target": "Qwen/Qwen3.5-4B", "max_tokens": 9}, {"limits.max_tokens": 9}),
        ({"target": "Qwen/Qwen3-32B"}, {"limits.max_tokens": None}),
        ({"target": "openai/gpt-oss-120b"}, {"sampling.temperature": 1.0, "sampling.top_p": 1.0}),
        (
            {"target": "some/other"},
            {"sampling.temperature": 0.6, "sampling.top_p": 0.95, "sampling.top_k": -1},
        ),
        # the paper's numbers, and the reference code's
        (
            {},
            {
                "lookahead.width": 1,
                "lookahead.max_step_tokens": 100,
                "lookahead.half_sentence_guard": True,
            },
        ),
        ({"target": "a/b"}, {"lookahead.depth": 6, "lookahead.verifier": "judge"}),
        # a target of one's own does not get the pocket models beside it
        ({"target": "a/b"}, {"models": {"target": "a/b"}}),
        ({"target": "a/b", "judge": "target"}, {"models": {"target": "a/b", "judge": "a/b"}}),
        ({"draft": "a/b"}, {"models.keys": POCKET}),
        # the judge's prompt follows the judge
        ({}, {"judge_prompt": "pocket"}),
        ({"judge": "Qwen/Qwen2.5-7B-Instruct"}, {"judge_prompt": "paper"}),
        ({"deployment": "FILE"}, {"judge_prompt": "pocket"}),
        ({"deployment": "FILE", "judge_prompt": "paper"}, {"judge_prompt": "paper"}),
    ],
    ids=str,
)
def test_which_setting_wins(file, given, wanted):
    plan = settings.settle(
        {name: file if value == "FILE" else value for name, value in given.items()}
    )
    for name, value in wanted.items():
        of_plan = name.split(".")[0] in ("deployment", "models", "modes", "program")
        found = attrgetter(name)(plan if of_plan else plan.deployment)
        assert (set(found()) if callable(found) else found) == value, name


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"temperature": 1.0, "top_k": 40}, {"temperature": 1.0, "top_p": 0.95, "top_k": 40}),
        ({"top_k": 0, "do_sample": True}, {"temperature": 0.6, "top_k": -1}),
        ({"temperature": None, "top_p": "0.9"}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
    ],
)
def test_a_models_own_sampling_goes_before_that_of_its_family(tmp_path, written, wanted):
    folder = tmp_path / "Qwen3-tuned"
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps(written))
    found = settings.settle({"target": str(folder)}).deployment.sampling
    assert {name: getattr(found, name) for name in wanted} == wanted


def assigned(*texts, **given):
    """The plan of these ``-o`` and options."""
    kind = options.Assignment()
    table = options.gathered(tuple(kind.convert(one, None, None) for one in texts), {})
    return settings.settle({"mode": (), **given, "option": table})


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["lookahead.width=2"], {"lookahead.width": 2}),
        (["lookahead.depth=3", "lookahead.depth=4"], {"lookahead.depth": 4}),
        (
            ["sampling.top_k=20", "sampling.top_p=0.5"],
            {"sampling.top_k": 20, "sampling.top_p": 0.5},
        ),
        (["limits.max_total_tokens=4096"], {"limits.max_total_tokens": 4096}),
        (["judge_prompt=paper"], {"judge_prompt": "paper"}),
        (["lookahead.verifier=random:0.6"], {"lookahead.verifier": "random:0.6"}),
        (["lookahead.half_sentence_guard=false"], {"lookahead.half_sentence_guard": False}),
        (["runtimes.target.gpus=0,1"], {"target.gpus": (0, 1), "target.tensor_parallel": 2}),
        (["runtimes.target.gpus=[0]"], {"target.gpus": (0,), "target.tensor_parallel": 1}),
        (
            ["runtimes.target.gpus=0,1", "runtimes.target.data_parallel=2"],
            {"target.tensor_parallel": 1, "target.data_parallel": 2},
        ),
        (
            ["runtimes.draft.token_layer=ngram"],
            {"draft.token_layer.algorithm": "ngram", "modes": ("lookahead+sd",)},
        ),
        (
            ["runtimes.target.token_layer.tokens=6"],
            {"target.token_layer.tokens": 6, "target.token_layer.algorithm": "standalone"},
        ),
        (
            ['runtimes.target.token_layer={algorithm = "ngram", tokens = 6}'],
            {"target.token_layer.tokens": 6, "target.token_layer.draft_model": ""},
        ),
        (["runtimes.target.token_layer=none"], {"modes": ("lookahead",)}),
        (["runtimes.judge=target"], {"shared": {"judge": "target"}}),
        (
            ["runtimes.target.extra.max-total-tokens=4096"],
            {"target.extra": {"max-total-tokens": 4096}},
        ),
        (["runtimes.target.model=a/b = c"], {"target.model": "a/b = c"}),
    ],
    ids=str,
)
def test_every_setting_can_be_assigned(texts, wanted):
    plan = assigned(*texts)
    for name, value in wanted.items():
        role = name.partition(".")[0]
        root = plan if name == "modes" else plan.deployment.runtimes.get(role, plan.deployment)
        assert attrgetter(re.sub("^(target|draft)[.]", "", name))(root) == value, name


def test_an_assignment_goes_before_a_file_and_a_named_option(file):
    plan = assigned("lookahead.depth=4", "sampling.temperature=0.25", depth=3, deployment=file)
    assert plan.deployment.lookahead.depth == 4
    assert plan.deployment.sampling.temperature == 0.25


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("lookahead.widht=2", "-o lookahead.widht: there is no such setting", "lookahead.width?"),
        ("width=2", "-o width: there is no such setting", "lookahead.width?"),
        ("runtimes.target.gpu=1", "there is no such setting", "runtimes.target.gpus?"),
        ("qwertz=1", "there is no such setting", "docs/cli.md"),
        ("lookahead.depth=x", "lookahead.depth", ""),
        ("lookahead.depth=0", "depth", ""),
        ("runtimes.judge.token_layer=ngram", "the judge writes one token", ""),
        ("runtimes.target.gpus=a", "gpus", ""),
        ("runtimes.target.gpus=0,0", "each of them once", ""),
        ("runtimes.target.gpus=", "cannot be used here", ""),
    ],
)
def test_what_cannot_be_assigned_is_a_named_error(text, said, hint):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        assigned(text)
    assert hint in caught.value.hint


def test_a_runtime_at_a_url_is_asked_for_its_model(monkeypatch, tmp_path):
    info = probe.ModelInfo("/somewhere/pocket/weights/judge", "")
    monkeypatch.setattr(attach, "what_runs", lambda role, runtime: [info])
    plan = settings.settle({"judge": "http://user:secret@host:1"})
    assert plan.models["judge"] == "pocket:judge"
    assert plan.deployment.judge_prompt == "pocket"
    (tmp_path / "mine.toml").write_text(
        '[runtimes]\ntarget.url = "http://host:2"\njudge.url = "http://host:1"\n'
    )
    by_file = {"deployment": str(tmp_path / "mine.toml")}
    assert settings.settle(by_file).deployment.judge_prompt == "pocket"
    plan = settings.settle({**by_file, "judge_prompt": "paper"})
    assert plan.deployment.judge_prompt == "paper"
    assert "secret" not in json.dumps([plan.placement(), plan.configured("lookahead")])


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        (["--mode", "autoregressive"], {"target"}),
        (["--verifier", "exact"], {"target", "draft"}),
        ([], {"target", "draft", "judge"}),
        (["--judge", "target"], {"target", "draft"}),
        (["--verifier", "likelihood:min"], {"target", "draft"}),
        (["--verifier", "cascade:likelihood,judge"], {"target", "draft", "judge"}),
        (["--mode", "lossless"], {"target", "draft"}),
        (LAYERED, {"target"}),
        ([*LAYERED, "--draft", "judge"], {"target"}),
        ([*LAYERED, "--mode", "lookahead+sd", "--verifier", "exact"], {"target", "draft"}),
        ([*LAYERED, "-o", "lookahead.policy=adaptive"], {"target", "draft"}),
        (["--mode", "lossless", "--token-layer", "fed"], {"target", "draft"}),
        (["--draft", "judge", "--verifier", "exact"], {"target", "judge"}),
    ],
)
def test_only_what_is_needed_is_started(call, servers, options, roles):
    told = call(*FAST, *options)
    assert set(servers.started[0].runtimes) == roles
    spared = "token layer ngram writes lossless answers alone" in " ".join(told.output.split())
    assert spared == ("lossless" in options and roles == {"target"})


# -- what cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "give one QUESTION, or --task NAME, or --input FILE"),
        (["run", "a", "--limit", "3"], "--limit is for"),
        (["run", "  "], "the question is empty"),
        (["run", "half a surrogate \udcff"], "the question is not UTF-8 text"),
        (["run", "--task", "gsm9k"], "no task 'gsm9k'"),
        (["run", "--input", "none.jsonl"], "cannot read the questions"),
        (
            ["run", "a", "--depth", "0"],
            "lookahead.depth: input should be greater than or equal to 1, got 0",
        ),
        (["run", "a", "-o", "lookahead.width=9"], "branches at once"),
        (
            ["run", "a", "-o", "lookahead.width=4", "--depth", "60"],
            "width 4 at depth 60 means more than 4096 branches at once",
        ),
        (["run", "a", "--target", "localhost:30000"], "did you mean http://localhost:30000?"),
        (["run", "a", "--draft", "htp://10.0.0.1:3"], "did you mean http://10.0.0.1:3?"),
        (["run", "a", "--target", "http://"], "'http://' names no host"),
        (["run", "a", "--target", "http://localhost:99999"], "Port out of range 0-65535"),
        (["run", "a", "--judge", "http://a b"], "has a space or a control character"),
        (["run", "a", "-o", "runtimes.target.url=localhost"], "did you mean http://localhost?"),
        (["plan"], "--alpha and --c1"),
        (["plan", "--alpha", 0.5], "give --c1"),
        (["plan", "--alpha", 1.5, "--c1", 0.1], "'--alpha': 1.5 is not in the range"),
        (["plan", "--alpha", 0.5, "--c1", 1], "c1: 1 is not possible"),
        ([*PLAN, "--judge", "soon"], "--judge"),
        ([*PLAN, "--judge", "-1"], "--judge"),
        ([*PLAN, "--layer-speed", 0.5], "--layer-speed"),
        ([*PLAN, "--layer-speed", "judge=2"], "target=NUMBER,draft=NUMBER"),
        ([*PLAN, "--layer-speed", "2,draft=2"], "target=NUMBER,draft=NUMBER"),
        ([*PLAN, "--depth", 65], "--depth"),
        (["plan", "--alpha", "nan", "--c1", ".1"], "'--alpha': 'nan' is no finite number"),
        (["plan", "--alpha", ".5", "--c1", ".1", "--judge", "inf"], "'inf' is no finite number"),
        (["plan", "--alpha", ".5", "--c1", "nan"], "'--c1': 'nan' is no finite number"),
        (["plan", "--alpha", ".5", "--c1", ".1", "--layer-speed", "nan"], "is no finite number"),
        (
            ["launch", "qwen3-4gpu", "--print", "-o", "runtimes.target.gpus=0,1,2"],
            "3 GPUs cannot share 64 attention heads and 8 KV heads of Qwen/Qwen3-32B",
        ),
        (["run", "a", "--depth", "x"], "'x' is not a valid integer"),
        (
            ["run", "a", "--temperature", "-1"],
            "sampling.temperature: input should be greater than or equal to 0",
        ),
        (["run", "a", "--temperature", "nan"], "temperature: input should be a finite number"),
        (["run", "a", "-o", "sampling.top_p=0"], "top_p: input should be greater than 0"),
        (
            ["run", "a", "--max-tokens", "0"],
            "limits.max_tokens: input should be greater than or equal to 1",
        ),
        (["run", "a", "--deployment", "none.toml"], "cannot read the deployment"),
        (["run", "a", "--verifier", "guess"], "no verifier is called 'guess'"),
        (["run", "a", "--verifier", "exact:3"], "no verifier is called 'exact:3'"),
        (["run", "a", "--verifier", "random:2"], "is no acceptance rate"),
        (["run", "a", "--verifier", "random:x"], "is no acceptance rate"),
        (["run", "a", "--verifier", "cascade:likelihood,guess"], "no verifier is called 'guess'"),
        (["run", "a", "-o", "judge_prompt=x"], "judge_prompt: input should be"),
        (
            ["run", "a", "-o", "runtimes.target=5"],
            "runtimes.target: input should be a table, got 5",
        ),
        (["run", "a", "-o", "sampling=x"], "sampling: input should be a table, got 'x'"),
        (["run", "a", "-o", "lookahead=3"], "lookahead: input should be a table, got 3"),
        (["run", "a", "-o", "runtimes=3"], "-o runtimes.target.model=VALUE"),
        (
            ["run", "a", "-o", "runtimes={target={token_layer=3}}"],
            "runtimes.target.token_layer: input should be a table, got 3",
        ),
        (["bench", "-o", "bench=3"], "-o bench.servers=VALUE"),
        (["run", "a", "--target", "x/y"], "lookahead needs a draft model"),
        (
            ["run", "a", "--target", "x/y", "--draft", "x/z"],
            "the judge verifier needs a judge model",
        ),
        (["run", "a", "-o", "runtimes.target.gpus=a"], "gpus.0: input should be a valid integer"),
        (["run", "a", "--mode", "fast"], "'fast' is not one of"),
        (["run", "a", "--samples", "10001"], "not in the range"),
        (["run", "a", "-o", "lookahead.depth=" + "9" * 5000], "exceeded maximum size"),
        (["run", "a", "-o", "lookahead.depth=" + "[" * 5000], "valid integer"),
        (["run", "a", "--deployment", "deep.toml"], "this is not TOML"),
        (["run", "a", "--deployment", "digits.toml"], "this is not TOML"),
        (["run", "a", "--resume"], "--resume goes with --output"),
        (
            ["run", "a", "--resume", "--output", "nowhere"],
            "nowhere: there is no run in it to resume",
        ),
        (["bench", "--resume", "--output", "nowhere"], "nowhere: there is no run in it to resume"),
        (["rnu", "a"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "a", "--dpeth", "3"], "No such option '--dpeth'. (Did you mean one of: '--depth'"),
        (["run", "a", "--frobnicate"], "No such option '--frobnicate'."),
        (["run", "a", "--output", "/dev/null/x"], "cannot be written"),
        (["walk"], "No such command 'walk'"),
        (["demo", "--questions", "0"], "0 is not in the range"),
        (["bench", "-o", "bench.paper=table1"], "--deployment deepseek-4gpu or qwen3-4gpu"),
        (["bench", "--fair", "replicas"], "these runtimes are on none"),
        (["bench", "-o", "bench.shapes=a,b,c"], "bench.dummy_weights"),
        (["bench", "-o", "bench.dummy_weights=true", "--draft", "x"], "different things"),
        (["bench", "-o", "bench.dummy_weights=true", "-o", "bench.shapes=a,b"], "give three of"),
        (["bench", "-o", "bench.dummy_weights=true", "--modes", "lossless"], "lossless"),
        (["bench", "--modes", "sd,sp"], "is not one of"),
        (["bench", "--methods", "specreaon"], "did you mean specreason?"),
        (["bench", "--methods", "rsd", "--modes", "sd"], "a mode is a method too"),
        (["bench", "--concurrency", "0"], "not in the range"),
        (["bench", "--sweep", "depth=65"], "depth"),
        (["bench", "--sweep", "policy=often"], "policy"),
        (["bench", "--task", "nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_a_named_error(call, servers, arguments, message):
    for name, value in (("deep", "[" * 5000), ("digits", "9" * 5000)):
        Path(f"{name}.toml").write_text(f"a = {value}")
    result = call(*arguments, code=1 if "--output" in arguments else 2)
    assert message in " ".join(result.stderr.split()), result.output
    assert result.stdout == ""
    assert not servers.started


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            LaunchError(
                "it ended with status 1", role="draft", hint="do this", detail="last words"
            ),
            1,
            [
                "the end of its log:",
                "last words",
                "Error: draft: it ended with status 1",
                "Hint: do this",
            ],
        ),
        (
            ProgramError("program mine: it failed", hint="do this", detail="Traceback ..."),
            1,
            ["its traceback:", "Traceback ...", "Error: program mine: it failed", "Hint: do this"],
        ),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere"),
            1,
            ["Error: No space left on device: /somewhere"],
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/closed/run.json"),
            1,
            ["Error: Permission denied: /closed/run.json"],
        ),
        (
            ZeroDivisionError("oh\nno"),
            70,
            ["Internal error: ZeroDivisionError: oh no (a bug; LR_SGLANG_DEBUG=1 shows where)"],
        ),
    ],
)
def test_whatever_fails_is_told_in_few_lines(call, monkeypatch, error, code, said):
    """And a bug says how to see more."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(session, "session", fail)
    gc.collect()  # what objects of other tests say at their end is none of this command's lines
    told = call(*FAST, code=code).stderr
    assert told.splitlines()[-len(said) :] == said, told
    monkeypatch.setenv("LR_SGLANG_DEBUG", "1")
    with pytest.raises(type(error)) as raised:
        call(*FAST, "--output", "again")
    assert raised.value is error


def failing(role, error):
    """Scripted transports of which one fails."""
    made = transports()
    made[role].fail = lambda text: error
    return made


def test_a_target_that_is_gone_stops_the_run_and_keeps_the_records(call, servers, tmp_path):
    servers.transports = transports()
    broken = RuntimeDown("it does not answer", role="target", hint="is it running?")
    requests = servers.transports["target"].requests
    servers.transports["target"].fail = lambda text: broken if len(requests) > 8 else None
    many = ("run", "--task", "pocket", "--limit", 9, "--output", "out")
    result = call(*many, code=1)
    assert "Error: target: it does not answer" in result.stderr
    assert "--resume --output out" in result.stderr
    assert 0 < len(records(tmp_path / "out")) < 9
    servers.transports = transports()
    call(*many, "--resume")
    made = records(tmp_path / "out")
    assert len(made) == 9 == len({r["question_id"] for r in made})


@pytest.mark.parametrize("role", ["draft", "judge"])
def test_a_draft_or_judge_that_fails_slows_and_is_said_with_its_cause(
    call, servers, role, tmp_path
):
    servers.transports = failing(role, RuntimeDown("gone", role=role))
    result = call(*FAST, "--output", "out")
    said = f"{role}: it failed ({'gone' if role == 'draft' else 'verifier judge: judge: gone'})"
    assert f"Warning: {said}" in result.stderr
    (record,) = records(tmp_path / "out")
    assert record["causes"].keys() == record["failures"].keys() and "gone" in record["causes"][role]
    assert "And so on." in result.stdout
    assert "+" not in [line[0] for line in result.stdout.splitlines()] or role == "judge"


def test_one_sample_that_fails_does_not_end_the_run(call, servers, tmp_path):
    requests = servers.transports["target"].requests
    long = PromptTooLong("too long", role="target", hint="shorten it")
    servers.transports["target"].fail = lambda text: long if len(requests) == 1 else None
    result = call("run", "--task", "pocket", "--limit", 3, "--mode", "autoregressive")
    assert [bool(r["error"]) for r in records(tmp_path / "runs")] == [True, False, False]
    assert "failed" in result.stdout


def test_room_for_more_answers_than_there_are_costs_nothing(call, servers, tmp_path):
    call("run", "--task", "pocket", "--limit", 2, "--concurrency", 10**18, "--output", "out")
    assert len(records(tmp_path / "out")) == 2


def test_when_every_sample_fails_the_run_has_failed(call, servers, tmp_path):
    servers.transports = failing(
        "target", RuntimeTimeout("too slow", role="target", hint="wait longer")
    )
    result = call(*FAST, "--output", "out", code=1)
    assert "Error: target: too slow" in result.stderr
    assert "Hint: wait longer" in result.stderr
    assert len(records(tmp_path / "out")) == 1


# -- going on


def test_a_finished_run_is_resumed_without_starting_anything(call, servers, tmp_path):
    many = ["run", "--task", "pocket", "--limit", 2, "--output", "out"]
    call(*many)
    call(*many, code=1)  # not without --resume
    assert "2 of 2 samples are done already" in call(*many, "--resume").stderr
    assert len(servers.started) == 1
    call("run", "--task", "pocket", "--limit", 3, "--output", "out", "--resume")
    assert len(records(tmp_path / "out")) == 3


def test_a_changed_file_of_questions_is_not_resumed(call, tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "a"}\n')
    asked = ("run", "--input", file, "--output", "out")
    call(*asked)
    file.write_text('{"question": "b"}\n')
    assert "was another one then" in call(*asked, "--resume", code=1).stderr


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"answer": 17}, {"answer": 18}, "'answer' of question q-0001 was 17 then, and is 18 now"),
        ({}, {"answer": 17}, "'answer' of question q-0001 was None then, and is 17 now"),
        ({"unit": "m"}, {"unit": "cm"}, "'unit' of question q-0001 was m then, and is cm now"),
        ({"unit": "m"}, {}, "'unit' of question q-0001 was m then, and is None now"),
    ],
)
def test_whatever_decides_a_record_is_the_same_in_a_resumed_run_or_taken_over(
    call, tmp_path, before, after, said
):
    file = tmp_path / "q.jsonl"
    rows = [{"question": "a", **before}, {"question": "b", "n": [1, {"x": None}]}]
    file.write_text(json.dumps(rows))
    asked = ("run", "--input", file, "--output", "out")
    call(*asked)
    call(*asked, "--resume")
    rows[0] = {"question": "a", **after}
    file.write_text(json.dumps(rows))
    refused = call(*asked, "--resume", code=1)
    assert said in refused.stderr and "--grade --key FILE" in refused.stderr
    taken = call("report", "out", "--grade", "--key", file)
    assert "1 of them took another answer or field" in taken.stderr
    call(*asked, "--resume")
    first, second = records(tmp_path / "out")
    gold = after.get("answer")
    assert first["gold"] == (gold and str(gold))
    assert first["correct"] is {17: True, 18: False, None: None}[gold]
    assert first["extra"] == {name: one for name, one in after.items() if name != "answer"}
    assert second["extra"] == {"n": [1, {"x": None}]}
    file.write_text(json.dumps([{**row, "id": f"new {n}"} for n, row in enumerate(rows)]))
    renamed = call(*asked, "--resume")
    assert "2 of its records are of questions that are not asked now" in renamed.stderr
    assert "--key goes with --grade" in call("report", "out", "--key", file, code=2).stderr


def test_colour_is_for_terminals(call, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in call(*FAST).output
    bad = ["run", "a", "--depth", "0"]
    assert "\x1b[31m" in call(*bad, color=True, code=2).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call(*bad, color=True, code=2).output


def test_there_is_a_prompt_for_each_name_in_the_settings():
    assert get_args(Deployment.model_fields["judge_prompt"].annotation) == ("", *PROMPTS)


# -- messages that say what was meant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--mode", "lookahed", "x"], "Did you mean lookahead?"),
        (["run", "--mode", "Lookahead", "x"], "Did you mean lookahead?"),
        (["tasks", "AIME25"], "did you mean aime25?"),
        (["run", "--verifier", "EXACT", "x"], "did you mean exact?"),
        (["run", "--deployment", "text.toml", "x"], "a model is model = 'pocket:target' under [runtimes.target]"),
        (["run", "--schedule", "asinc", "x"], "Did you mean async?"),
        (["bench", "--modes", "sd,lookahed"], "Did you mean lookahead?"),
        (["bench", "--fair", "replica"], "Did you mean replicas?"),
        (["report", "x", "--export", "evalpus"], "Did you mean evalplus?"),
        (["run", "-o", "lookahead.schedule=asinc", "x"], "did you mean async?"),
        (["run", "-o", "runtimes.target.device=cdua", "x"], "did you mean cuda?"),
        (["run", "--deployment", "darft.toml", "x"], "runtimes.darft: no such role; did you mean draft?"),
        (["run", "--deployment", "qwen3-1gpuu", "x"], "did you mean qwen3-1gpu?"),
        (["launch", "poket"], "did you mean pocket?"),
        (["run", "--program", "mine.py", "x"], "it has mine.py:twice, mine.py:Thing, mine.py:TASK"),
        (["run", "--verifier", "mine.py", "x"], "which of its names is the verifier?"),
        (["run", "--verifier", "mine.py:Thng", "x"], "did you mean Thing?"),
        (["bench", "--methods", "lookahead,mine.py:twcie"], "did you mean twice?"),
        (["bench", "--methods", "lookahead,runs.py:thrice:cue=so"], "did you mean cues?"),
        (["run", "--program", "specreason:n=2", "x"], "it takes threshold, first, most"),
        (["run", "--task", "mine.py"], "it has mine.py:twice"),
        (["run", "--program", "nothing.py", "x"], "no program is called 'nothing.py'"),
        (["run", "--task", "pocket", "limit"], "QUESTION 'limit' and --task pocket were given: give one"),
        (["run", "--task", "poket", "limit"], "did you mean pocket?"),
        (["run", "--task", "pocket", "--input", "q.jsonl", "x"], "--task pocket and --input q.jsonl were"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_misspelt_word_is_answered_with_what_was_meant(words, said, call, tmp_path):
    (tmp_path / "darft.toml").write_text(
        "[runtimes.target]\nmodel = 'pocket:target'\n[runtimes.darft]\nmodel = 'pocket:draft'\n"
    )
    (tmp_path / "text.toml").write_text("[runtimes]\ntarget = 'pocket:target'\n")
    mine = "def twice(s): pass\nclass Thing: pass\nTASK = 1\n_hidden = 2\nraise SystemExit\n"
    (tmp_path / "mine.py").write_text(mine)
    runs = "import sglang as sgl\n@sgl.function\ndef thrice(s, messages, cues=''): pass\n"
    (tmp_path / "runs.py").write_text(runs)
    assert said in " ".join(call(*words, code=2).output.split())


def test_servers_that_start_twice_are_announced(call):
    modes = ("--mode", "autoregressive", "--mode", "sd", "--mode", "lookahead")
    result = call("run", "--task", "pocket", "--limit", 1, "--verifier", "exact", *modes)
    assert "2 sets of servers (autoregressive, lookahead; sd), since a token layer is set" in (
        " ".join(result.stderr.split())
    )
    assert "one after the other, 2 starts" in " ".join(result.stderr.split())
    alone = call("run", "--task", "pocket", "--limit", 1, "--verifier", "exact")
    assert "sets of servers" not in alone.stderr


def test_the_import_of_sglang_is_told_where_servers_were_up(monkeypatch, tmp_path):
    """It takes longer than an answer."""
    events, imported = [], threading.Event()

    @contextmanager
    def deployed(deployment, logs, tell, timeout, ready):
        tell(ProgressEvent("target", "attached", 0.0))
        ready(types.SimpleNamespace())
        yield {}

    def progress(event):
        events.append((event.role, event.stage))
        if event.stage == "importing":
            imported.set()

    monkeypatch.setattr(session, "deployed", deployed)
    monkeypatch.setattr(session, "_import", lambda lean: imported.wait(30))
    here = Deployment(name="d", runtimes={"target": {"url": "http://127.0.0.1:1"}})
    with session.session(here, tmp_path, progress, 1.0, lean=True):
        pass
    assert events == [("target", "attached"), ("SGLang", "importing"), ("SGLang", "ready")]


@pytest.mark.parametrize(
    ("owner", "path", "said"),
    [
        ("lr-sglang", "", "is an endpoint of lr-sglang"),
        ("lr-sglang", "/v1", "is an endpoint of lr-sglang"),
        ("sglang", "/v1", "ends in /v1, which is not wanted"),
        ("vllm", "", "is no SGLang server, but of 'vllm'"),
    ],
)
def test_another_server_than_sglangs_is_recognised(owner, path, said, monkeypatch):
    async def get(self, route, timeout=0):
        if route == "/v1/models" and not self.url.endswith("/v1"):
            return {"data": [{"id": "m", "owned_by": owner}]}
        raise status_error(404, "not found", route, "target")

    monkeypatch.setattr(Client, "get", get)
    with pytest.raises(ConfigError, match=rf"^target: .*{said}.*\nHint: "):
        attach.what_runs("target", Runtime(url=f"http://127.0.0.1:1{path}"))


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        ([1, 2], 200, "did not answer with a JSON object"),
        (b"<html>", 200, "did not answer with a JSON object"),
        ({"a": 1}, 200, "something that is not SGLang's"),
        (b"oops", 500, "/model_info: 500 oops"),
        (b"", 302, "/model_info: 302"),
        (b"SSH-2.0-OpenSSH\r\n", 0, "what it answers is not HTTP"),
    ],
)
def test_whatever_another_server_answers_its_address_and_a_hint_are_told(
    call, serving, document, status, said
):
    class Other(Handler):
        def do_GET(self):
            self.reply(document, status) if status else self.wfile.write(document)

    stub = serving(Stub(Other))
    result = call("run", "a", "--target", stub.url, "--mode", "autoregressive", code=1)
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"Error: target: {stub.url}") and said in error
    assert hint.startswith("Hint: ")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Qwen/Qwen3-235B-A22B", "its weights take"),
        ("Qwen/Qwen3-0.6B", "set device = 'cpu'"),
        ("a/b", "set device = 'cpu'"),
    ],
)
def test_without_a_gpu_the_hint_knows_the_memory(model, said, monkeypatch):
    monkeypatch.setattr(flags, "_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=rf"PyTorch sees none.*\nHint: .*{said}"):
        flags.device(Runtime(model=model, device="cuda"))


# -- variables

SERVICES = {  # as Kubernetes sets them for Services named lr-sglang-serve and lr-sglang
    "LR_SGLANG_SERVE_SERVICE_HOST": "10.0.0.7",
    "LR_SGLANG_SERVE_SERVICE_PORT": "8000",
    "LR_SGLANG_SERVE_SERVICE_PORT_HTTP": "8000",
    "LR_SGLANG_SERVE_PORT": "tcp://10.0.0.7:8000",
    "LR_SGLANG_SERVE_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "LR_SGLANG_SERVE_PORT_8000_TCP_PROTO": "tcp",
    "LR_SGLANG_SERVE_PORT_8000_TCP_PORT": "8000",
    "LR_SGLANG_SERVE_PORT_8000_TCP_ADDR": "10.0.0.7",
    "LR_SGLANG_SERVE_TARGET": "tcp://[fd00::7]:30000",
    "LR_SGLANG_PORT": "udp://10.0.0.8:53",
    "LR_SGLANG_SERVICE_HOST": "10.0.0.8",
    "LR_SGLANG_RUN_DEPTH_SERVICE_HOST": "10.0.0.9",
}


def fails_to_listen(**variables):
    """What ``serve`` says with these variables and a host where nobody can listen."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        arguments = ("--host", "0..0.0", "-o", "serve.allow_no_key=true")
        return called("serve", *arguments, code=1).output


OURS = {"LR_SGLANG_RUN_DEPTH": "3", "LR_SGLANG_API_KEYS": "k", "LR_SGLANG_SERVE_QUEUE": "5"}


@pytest.mark.parametrize("variables", [SERVICES, OURS], ids=["of Kubernetes", "ours"])
def test_variables_that_kubernetes_sets_or_that_there_are_are_not_told(variables):
    said = fails_to_listen(**variables)
    assert "cannot listen on 0..0.0:8000" in said and "LR_SGLANG" not in said


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LR_SGLANG_SERVE_PROT", "LR_SGLANG_SERVE_PORT"),
        ("LR_SGLANG_SEVRE_PORT", "LR_SGLANG_SERVE_PORT"),
        ("LR_SGLANG_BENCH_SAMPELS", "LR_SGLANG_BENCH_SAMPLES"),
        ("LR_SGLANG_DEPTH", "LR_SGLANG_RUN_DEPTH"),
        ("LR_SGLANG_API_KEY", "LR_SGLANG_API_KEYS"),
        ("LR_SGLANG_RUN_PORT", "LR_SGLANG_"),
    ],
)
def test_a_variable_that_there_is_not_is_told_with_the_nearest(name, nearest):
    said = fails_to_listen(**{name: "3"})
    assert f"Warning: {name}: there is no such variable; did you mean {nearest}" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LR_SGLANG_SERVE_PORT", "http"),
        ("LR_SGLANG_SERVE_MODE", "lookahead fast"),
        ("LR_SGLANG_SERVE_DEPTH", "99"),
        ("LR_SGLANG_SERVE_MAX_TOKENS", "-1"),
        ("LR_SGLANG_SERVE_OPTION", "lookahead.dept=3"),
        ("LR_SGLANG_SERVE_TARGET", "/nowhere/at/all"),
        ("LR_SGLANG_SERVE_API_KEYS_FILE", "/nowhere/keys"),
        ("LR_SGLANG_SERVE_DEPLOYMENT", "no-such-deployment"),
    ],
)
def test_an_error_names_the_variable_that_gave_the_value(monkeypatch, name, value):
    monkeypatch.setenv("LR_SGLANG_SERVE_MODE", "autoregressive")
    monkeypatch.setenv(name, value)
    assert name in called("serve", code=2).output


def test_an_error_about_an_option_names_no_variable_that_it_has_replaced(monkeypatch):
    monkeypatch.setenv("LR_SGLANG_SERVE_DEPTH", "5")
    for arguments in (("--depth", "99"), ("--depth=99",)):
        assert "LR_SGLANG" not in called("serve", *arguments, code=2).output
