"""A target in a larger body: at temperature 0 the same answers in every mode, layer and way of
loading.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lossless import Comparison, variant
from lr_sglang import tasks
from lr_sglang.runtimes import load_deployment
from tests import FULL, ROOT, records

pytestmark = [
    pytest.mark.skipif(not FULL, reason="minutes: only in test-full"),
    pytest.mark.timeout(1800),
]

BODY = "pocket:target@512x1024x28"
HUNDRED = 100
QUESTIONS = tasks.load("pocket", limit=6)
GAP = 0.1  # of log-probabilities; logits in bfloat16 are up to 0.06 apart


def answers(
    folder: Path, *options: str, questions: int, deployment: str = "pocket", target: str = BODY
) -> dict[str, list[str]]:
    """The texts of every mode, in the order of the questions."""
    command = [
        sys.executable,
        ROOT / "cli.py",
        "run",
        "--deployment",
        deployment,
        "--target",
        target,
    ]
    command += [
        "--task",
        "pocket",
        "--temperature",
        "0",
        "--limit",
        str(questions),
        "--output",
        folder,
        *options,
    ]
    done = subprocess.run(
        command, cwd=folder.parent, capture_output=True, text=True, timeout=1700, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for record in sorted(records(folder), key=lambda record: str(record["question_id"])):
        found.setdefault(record["mode"], []).append(record["text"])
    return found


def test_a_body_computed_in_memory_answers_the_same(tmp_path: Path) -> None:
    texts = answers(tmp_path / "plain", "--mode", "autoregressive", questions=8)["autoregressive"]
    own = tmp_path / "computed.toml"
    own.write_text('[runtimes.target]\nmodel = "x"\nextra = { load-format = "private" }\n', "utf-8")
    computed = answers(
        tmp_path / "computed", "--mode", "autoregressive", questions=8, deployment=str(own)
    )
    assert len(texts) == 8 and all("boxed" in text for text in texts)
    assert computed["autoregressive"] == texts


@pytest.fixture(scope="module")
def words_of_the_pocket_model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return plain_decoding("pocket:target", tmp_path_factory.mktemp("small"))


def plain_decoding(model: str, folder: Path) -> list[str]:
    """What the model answers to a hundred problems in float32, eight at a time."""
    own = folder / "deployment.toml"
    own.write_text(f'[runtimes.target]\nmodel = "{model}"\ndtype = "float32"\n', "utf-8")
    options = ("--mode", "autoregressive", "--concurrency", "8")
    found = answers(folder / "run", *options, questions=HUNDRED, deployment=str(own), target=model)
    return found["autoregressive"]


@pytest.mark.parametrize(("body", "least"), [("512x4096x28", HUNDRED), ("qwen3-0.6b", 97)])
def test_a_hundred_problems_are_answered_alike(
    body: str, least: int, words_of_the_pocket_model: list[str], tmp_path: Path
) -> None:
    """Every word, where the width grows by a power of four; elsewhere a norm rounds otherwise."""
    texts = plain_decoding(f"pocket:target@{body}", tmp_path)
    assert len(texts) == len(words_of_the_pocket_model) == HUNDRED
    assert sum(map(str.__eq__, texts, words_of_the_pocket_model)) >= least


@pytest.mark.parametrize("draft", ["pocket:draft", "pocket:target"])
def test_in_float32_every_layer_gives_plain_decodings_answers(draft: str) -> None:
    found = Comparison(
        variant(load_deployment("pocket-body"), draft=draft, dtype="float32"), QUESTIONS
    )
    assert found.equal == [len(QUESTIONS)] * len(found.equal)
    assert found.judged and (found.accepted or draft == "pocket:draft")


def test_in_bfloat16_they_differ_only_where_two_tokens_are_nearly_as_likely() -> None:
    found = Comparison(variant(load_deployment("pocket-body"), dtype="bfloat16"), QUESTIONS)
    assert found.gap <= GAP
