"""Clients that others wrote, at new versions and in an environment of their own
(``scripts/clients.sh``), against ``lr-sglang serve`` over real SGLang servers: as
``docs/clients.md`` and ``docs/evaluation.md`` show them, and what else they do by default.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import FULL, ROOT
from tests.commands import blocks, clients
from tests.e2e.conftest import Pocket
from tests.serving import Process, serving

MODEL, ADDRESS = "pocket:target", "http://localhost:8000"
BLOCKS = [block for block in blocks() if block.page == "docs/clients.md"]
PYTHON = {
    re.search('title="(.*)"', b.info)[1]: b.body for b in BLOCKS if b.info.startswith("python")
}  # type: ignore[index]
SHELL = [block.body.strip() for block in BLOCKS if not block.info]
EVALUATION = {
    re.search('title="(.*)"', b.info)[1]: b.body.strip()
    for b in blocks()
    if b.page == "docs/evaluation.md" and b.info.startswith("sh ")
}  # type: ignore[index]
LM_EVAL = ("lm-eval", "lm-eval, raw prompts")
QUESTIONS = 50
ANSWER = "17"  # of the page's question


@pytest.fixture(scope="module")
def endpoint(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    # the page's requests have no temperature
    options = ("-o", f"serve.model={MODEL}", "--concurrency", 4, "--temperature", 0)
    options += ("--mode", "lookahead", "--schedule", "sync")  # in which no draft is late
    with serving(tmp_path_factory.mktemp("others"), pocket.fleet.urls, *options) as process:
        yield process
        assert "Traceback" not in process.said


@pytest.fixture
def ahead(endpoint: Process) -> Iterator[None]:
    """Asserts that lookahead answered the test's chats and completions but those with tools or a
    grammar, and that a stream began before the answer's end.
    """
    before = len(endpoint.log)
    yield
    lines = [one for one in endpoint.log[before:] if one.get("route", "").endswith("completions")]
    assert lines
    for line in lines:
        grammar = set(line.get("why", ())) & {"tools", "response_format", "regex"}
        assert line["mode"] == ("target" if grammar else "lookahead"), line
        if line["stream"] and not grammar:
            assert line["steps"] > 1 and line["first_seconds"] < line["seconds"], line
    assert any(line.get("alpha") is not None for line in lines), "no draft was judged"


def call(command: str, url: str, folder: Path, given: str = "") -> str:
    """What a line of shell says in their environment, with the page's address replaced."""
    path = f"{clients()}{os.pathsep}{os.environ['PATH']}"
    homes = {
        name: str(folder)
        for name in ("LLM_USER_PATH", "INSPECT_LOG_DIR", "HF_HOME", "XDG_DATA_HOME")
    }
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        ["bash", "-c", command.replace(ADDRESS, url)],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **homes, **offline},
        input=given.replace(ADDRESS, url),
        capture_output=True,
        text=True,
        timeout=400 if FULL else 200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_has_each_of_them():
    assert set(PYTHON) == {"openai", "anthropic"}
    assert len(SHELL) == 1


@pytest.mark.usefixtures("ahead")
def test_llm_answers(endpoint, tmp_path):
    (setting,) = [block.body for block in BLOCKS if block.info.startswith("yaml")]
    assert yaml.safe_load(setting)[0]["model_name"] == MODEL
    (tmp_path / "extra-openai-models.yaml").write_text(setting.replace(ADDRESS, endpoint.url))
    assert ANSWER in call(SHELL[0], endpoint.url, tmp_path)


def score(title: str, url: str, model: str, folder: Path) -> tuple[float, float]:
    """Of lm-eval's task on so many questions, as the page runs it, and its standard error."""
    line = EVALUATION[title].replace("--limit 20", f"--limit {QUESTIONS}").replace(MODEL, model)
    call(f"{line} --output_path {folder}", url, folder)
    (file,) = folder.rglob("results_*.json")
    found = json.loads(file.read_text("utf-8"))
    assert found["n-samples"]["pocket"]["effective"] == QUESTIONS
    right, error = (
        found["results"]["pocket"][f"{kind},last-number"]
        for kind in ("exact_match", "exact_match_stderr")
    )
    return right, error


@pytest.mark.usefixtures("ahead")
def test_sgl_eval_measures_accuracy_as_the_page_shows(endpoint, tmp_path):
    line = EVALUATION["sgl-eval"].replace("--n-repeats 4", "--n-repeats 2 --num-examples 6")
    said = call(f"{line} --out-dir {tmp_path}", endpoint.url, tmp_path)
    found = re.search(r"pass@1\[avg-of-2\] +=  ([0-9.]+)%", said)
    assert found and float(found[1]) > 80, said
    (file,) = tmp_path.rglob("metrics.json")
    assert json.loads(file.read_text("utf-8"))["aggregate"]["no_answer"] == 0


@pytest.mark.parametrize(("title", "asked"), [("AIME", 3), ("GPQA", 2)])
def test_sgl_eval_asks_questions_of_benchmarks(title, asked, endpoint, tmp_path):
    """Which the pocket models cannot answer."""
    said = call(f"{EVALUATION[title]} --out-dir {tmp_path}", endpoint.url, tmp_path)
    assert f"{asked} examples x 2 repeats" in said and "error_rate           =  0.00%" in said


@pytest.mark.skipif(not FULL, reason="their imports take long: only in test-full")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    ("title", "score"), [("lm-eval", r"↑ +\| *([0-9.]+)"), ("inspect_ai", r"accuracy +([0-9.]+)")]
)
def test_other_tools_measure_accuracy_as_the_page_shows(title, score, endpoint, tmp_path):
    said = call(EVALUATION[title], endpoint.url, tmp_path)
    found = re.findall(score, said)
    assert found and float(found[-1]) > 0.8, said


@pytest.mark.skipif(not FULL, reason="minutes: only in test-full")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("title", LM_EVAL)
def test_lm_eval_gives_the_score_of_the_bare_target(title, endpoint, pocket, tmp_path):
    ours, first = score(title, endpoint.url, MODEL, tmp_path / "endpoint")
    # SGLang looks for an adapter behind the colon of our name
    bare, second = score(title, pocket.fleet.urls["target"], "pocket", tmp_path / "target")
    assert abs(ours - bare) <= 1.96 * (first**2 + second**2) ** 0.5


OPENAI = """
import sys

from openai import OpenAI
from pydantic import BaseModel, Field

one = OpenAI(base_url="http://localhost:8000/v1", api_key="none", max_retries=0)
bare = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
asked = {"messages": [{"role": "user", "content": "Sam has 3 pens. Ben brings 2 pens. How many pens are there?"}],
         "temperature": 0}
there, here = {**asked, "model": "pocket"}, {**asked, "model": "pocket:target"}
long = "Hats cost 8 dollars each. Lamps cost 2 dollars each. Sam orders 5 hats and 6 lamps. How many dollars is the bill?"
steps = {"messages": [{"role": "user", "content": long}]}

def text(chunks):
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    whole = "".join(pieces)
    assert len(pieces[0]) < len(whole) / 2, "the stream begins before half of the answer is written"
    return whole

# a stream, as such and by the helper
exact = {"extra_body": {"lookahead": {"verifier": "exact"}}}
whole = bare.chat.completions.create(**{**there, **steps}).choices[0].message.content
assert whole and text(one.chat.completions.create(**{**here, **steps}, **exact, stream=True)) == whole
with one.chat.completions.stream(**{**here, **steps}, **exact) as stream:
    kinds = [event.type for event in stream]
    assert kinds[-1] == "content.done" or "content.done" in kinds
    assert stream.get_final_completion().choices[0].message.content == whole

# tools
class Number(BaseModel):
    answer: int = Field(ge=0, le=999)  # the pocket target may write digits without end

function = {"name": "add", "description": "adds", "parameters": Number.model_json_schema()}
tools = {"tools": [{"type": "function", "function": function}], "max_tokens": 40}
made, same = (client.chat.completions.create(**asked, **tools) for client, asked in ((one, here), (bare, there)))
assert made.choices[0].model_dump() == same.choices[0].model_dump(), made
assert made.lookahead == {"mode": "target", "why": ["tools"]}

# parse: servers of pocket models write JSON without white space, so that it ends
for client, asked in ((one, here), (bare, there)):
    made = client.chat.completions.parse(**asked, response_format=Number, max_tokens=40)
    assert isinstance(made.choices[0].message.parsed, Number), made
form = {"response_format": {"type": "text"}, "regex": r'\\{"answer": [0-9]{1,3}\\}'}
made = one.chat.completions.parse(**here, response_format=Number, extra_body=form)
assert isinstance(made.choices[0].message.parsed, Number), made
"""


@pytest.mark.parametrize("name", PYTHON)
def test_what_the_page_shows_of_it_answers_and_so_does_the_rest(
    name, endpoint, pocket, tmp_path, request
):
    if name != "anthropic":  # whose messages the target alone answers
        request.getfixturevalue("ahead")
    more = OPENAI if name == "openai" else ""
    command = f"python - {pocket.fleet.urls['target']}"
    said = call(command, endpoint.url, tmp_path, f"{PYTHON[name]}\n{more}")
    # the target's own temperature is that of Anthropic's messages: its answer may be a wrong one
    assert said.strip() if name == "anthropic" else ANSWER in said
