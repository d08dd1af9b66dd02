"""Grading while a run is made, a folder again, and samples for other graders."""

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang import tasks
from lr_sglang.cli import cli, session
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.grading.export import export
from lr_sglang.grading.regrade import regrade
from lr_sglang.results.store import RECORDS, RUN
from tests.scripted_cli import Servers


def record(number=0, text="\\boxed{4}", gold="4", correct=None, **changes):
    return {
        "schema": 1,
        "question_id": f"q{number}",
        "sample": 0,
        "mode": "lookahead",
        "question": "2 + 2?",
        "gold": gold,
        "extra": {"level": 1, "float": 0.1},
        "seed": 5,
        "text": text,
        "answer": "4",
        "correct": correct,
        "error": None,
        "seconds": 0.123456,
        "steps": [{"text": "ü \u2028 \\boxed{4}"}],
        **changes,
    }


def folder(path, records, task="gsm8k", rest=b""):
    path.mkdir(exist_ok=True)
    (path / RUN).write_text(json.dumps({"schema": 1, "config": {"lookahead": {"questions": task}}}))
    lines = [
        json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for one in records
    ]
    (path / RECORDS).write_bytes(b"".join(lines) + rest)
    return path


def read(path):
    return [json.loads(line) for line in (path / RECORDS).read_bytes().split(b"\n")[:-1]]


def call(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_only_the_verdict_changes_and_what_changed_is_said(tmp_path):
    before = [
        record(0, correct=True),
        record(1, "\\boxed{5}", correct=True),
        record(2, "\\boxed{4.0}"),
        record(3, gold=None),
    ]
    path = folder(tmp_path / "r", before, rest=b'{"schema":1,"cut o')
    said = regrade(path)
    assert said == "4 records: 2 correct, 1 wrong, 1 ungraded; 2 verdicts changed"
    after = read(path)
    assert [one["correct"] for one in after] == [True, False, True, None]
    assert after[3]["grade"]["reason"] == "the answer is not known"
    fields = {"answer", "correct", "grade"}
    for old, new in zip(before, after, strict=True):
        assert {k: v for k, v in old.items() if k not in fields} == {
            k: v for k, v in new.items() if k not in fields
        }
    once = (path / RECORDS).read_bytes()
    assert once.endswith(b"}\n"), "the line that was cut off is none"
    assert {file.name for file in path.iterdir()} == {RECORDS, RUN, ".lock"}
    assert regrade(path).endswith("no verdicts changed") and (path / RECORDS).read_bytes() == once


@pytest.mark.parametrize(
    ("task", "grader"),
    [
        ("gpqa-diamond", "choice"),
        ("pocket", "number"),
        ("gsm8k:all", "math"),
        ("humaneval", "none"),
        ("mine.jsonl", "math"),
    ],
)
def test_the_grader_is_the_tasks(tmp_path, task, grader):
    path = folder(tmp_path / "r", [record(grade={"grader": "number"})], task=task)
    regrade(path)
    assert read(path)[0]["grade"]["grader"] == grader


def test_a_task_that_is_gone_is_not_graded_by_guess(tmp_path):
    path = folder(tmp_path / "r", [record(grade={"grader": "even"})], task="mine.py:TASK")
    with pytest.raises(ConfigError, match="mine"):
        regrade(path)


@pytest.mark.parametrize("damage", ["no folder", "no run", "no records", "damaged", "at work"])
def test_a_folder_that_cannot_be_graded_is_a_named_error(tmp_path, damage):
    path = tmp_path / "r"
    if damage != "no folder":
        folder(path, [record()])
    if damage == "no run":
        (path / RUN).unlink()
    if damage == "no records":
        (path / RECORDS).unlink()
    if damage == "damaged":
        (path / RECORDS).write_text("x\n" + (path / RECORDS).read_text())
    with (tmp_path / "lock" if damage != "at work" else path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecordError):
            regrade(path)


# -- samples for other graders

PROMPT = 'import math\n\ndef area(r):\n    """Of a circle."""\n'
HUMANEVAL = {"prompt": PROMPT, "entry_point": "area"}


@pytest.mark.parametrize(
    ("answer", "solution"),
    [
        ("```python\ndef area(r):\n    return 3\n```", f"{PROMPT}\ndef area(r):\n    return 3"),
        ("```python\nreturn math.pi * r * r\n```", f"{PROMPT}\n    return math.pi * r * r"),
        ("```python\n    return 3\n```", f"{PROMPT}\n    return 3"),
        ("I do not know.", ""),
        ("<think>```python\ndef area(r): 3\n```", ""),
    ],
)
def test_evalplus_gets_a_line_for_each_sample_that_stands_alone(tmp_path, answer, solution):
    good = record(1, "```python\ndef area(r): 1\n```", extra=HUMANEVAL)
    (path,) = export("evalplus", [record(0, answer, extra=HUMANEVAL), good], tmp_path)
    assert path.name == "evalplus-lookahead.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"task_id": "q0", "solution": solution}
    assert lines[1]["task_id"] == "q1"
    for line in lines:
        compile(line["solution"], "solution", "exec")


def test_livecodebench_gets_all_samples_of_a_question_together(tmp_path):
    answers = [
        record(n, f"```python\nprint({n}{sample})\n```", sample=sample, mode=mode)
        for n in range(2)
        for sample in (1, 0)
        for mode in ("sd", "lookahead+sd")
    ]
    answers[0]["error"] = {"kind": "RuntimeTimeout"}
    first, second = export("livecodebench", answers, tmp_path)
    assert {first.name, second.name} == {
        "livecodebench-sd.json",
        "livecodebench-lookahead+sd.json",
    }
    assert json.loads((tmp_path / "livecodebench-sd.json").read_text()) == [
        {"question_id": "q0", "code_list": ["print(00)", ""]},
        {"question_id": "q1", "code_list": ["print(10)", "print(11)"]},
    ]


@pytest.mark.parametrize("form", ["evalplus", "livecodebench"])
def test_answers_without_programs_are_not_exported(tmp_path, form):
    with pytest.raises(RecordError, match=r"none of HumanEval|has a program"):
        export(form, [record()], tmp_path)
    assert not list(tmp_path.iterdir())


# -- while a run is made


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run over scripted runtimes, whose answer is always a boxed 17."""
    monkeypatch.setattr(session, "session", Servers())
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        result = call("run", "--verifier", "exact", "--output", tmp_path / "out", *arguments)
        return result, [
            json.loads(line)
            for line in (tmp_path / "out" / RECORDS).read_text("utf-8").splitlines()
        ]

    return invoke


def test_a_run_of_a_task_is_asked_with_its_prompt_and_graded_by_its_grader(run):
    rows = [{"question": "a?", "answer": "So.\n#### 18"}, {"question": "b?", "answer": "18"}]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result, made = run("--task", "gsm8k", "--input", "q.jsonl")
    assert result.exit_code == 0, result.output
    assert [one["grade"]["grader"] for one in made] == ["math", "math"]
    assert {one["correct"] for one in made} == {False}
    assert (
        "\\boxed{}" in made[0]["config"]["prompt_suffix"]
        and made[0]["config"]["questions"] == "gsm8k"
    )


def test_a_run_of_a_file_is_graded_as_mathematics(run, tmp_path):
    (tmp_path / "q.jsonl").write_text(
        '{"question": "?", "answer": "\\\\frac{34}{2}"}\n{"question": "!"}\n'
    )
    _, made = run("--input", "q.jsonl")
    assert [one["correct"] for one in made] == [True, None]
    assert made[0]["grade"]["by"] == "number"


def test_a_run_of_code_says_where_it_is_graded_and_writes_it_for_there(run):
    rows = [{"task_id": "HumanEval/0", "prompt": PROMPT, "entry_point": "area"}]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result, made = run("--task", "humaneval", "--input", "q.jsonl")
    assert result.exit_code == 0
    assert " ".join(result.stderr.split()).count("report DIR --export evalplus") == 1
    assert made[0]["correct"] is None and made[0]["extra"] == HUMANEVAL
    line = {**made[0], "text": "```python\ndef area(r): 1\n```"}
    Path("out", RECORDS).write_text(json.dumps(line) + "\n")
    exported = call("report", "out", "--export", "evalplus")
    assert exported.stdout == "out/evalplus-lookahead.jsonl\n", exported.output
    assert "HumanEval/0" in Path("out/evalplus-lookahead.jsonl").read_text()


GRADERS = {
    "all": "return question.gold in text",
    "some": "return question.answer in text if question.id == 'b' else 1 / 0",
    "none": "return question.answer in text",
}


@pytest.mark.parametrize(("failing", "count"), [("all", 2), ("some", 1), ("none", 0)])
def test_a_grader_that_raises_is_counted_and_told(run, tmp_path, failing, count):
    """In the table and at the end; the command fails where not one answer has a grade. Mended, it
    grades again.
    """
    source = (
        "from lr_sglang.tasks import Question, Task\n"
        "def mine(text, question):\n    {}\n"
        "TASK = Task('mine', load=lambda: [Question(name, '?', '17') for name in 'ab'], "
        "suffix='', grader=mine)\n"
    )
    (tmp_path / "mine.py").write_text(source.format(GRADERS[failing]))
    result, made = run("--task", "mine.py:TASK")
    told, why = (
        " ".join(result.output.split()),
        "grader mine: " + ("AttributeError" if failing == "all" else "Zero"),
    )
    assert result.exit_code == (failing == "all")
    assert ("grading failed" in told, why in told) == (bool(count), bool(count))
    assert ("no answer could be graded" in told) == (failing == "all")
    assert [bool(one["grade"].get("failed")) for one in made] == [True] * count + [False] * (
        2 - count
    )
    reported = call("report", "out").output
    assert (f"grading failed for {count} of 2" in " ".join(reported.split())) == bool(count)
    (tmp_path / "mine.py").write_text(source.format(GRADERS["none"]))
    again = call("report", "out", "--grade")
    changed = "1 verdict changed" if count == 1 else f"{count or 'no'} verdicts changed"
    assert again.exit_code == 0 and f"2 correct; {changed}" in again.stderr
    assert [one["correct"] for one in map(json.loads, (tmp_path / "out" / RECORDS).open())] == [
        True,
        True,
    ]


def test_tasks_are_listed_and_shown():
    listed = call("tasks").output
    assert all(name in listed for name in tasks.names()) and "200 questions, offline" in listed
    shown = call("tasks", "gsm8k").output
    assert "openai/gsm8k@" in shown and "\\boxed{}" in shown and "Random(42)" in shown
    table = json.loads(call("tasks", "pocket", "--json").stdout)
    assert (table["questions"], table["offline"], table["grader"]) == (200, True, "number")
    assert call("tasks", "gsm9k").exit_code == 2
