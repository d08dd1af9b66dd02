"""Questions from tasks and files, and the grading of boxed answers."""

import json

import pytest

from lr_sglang import tasks
from lr_sglang.errors import ConfigError
from lr_sglang.tasks import boxed
from lr_sglang.tasks.question import plan


def write(folder, *lines):
    path = folder / "mine.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8"
    )
    return path


def test_the_built_in_task_has_gold_answers_and_ids_of_its_own():
    questions = tasks.load("pocket")
    assert len(questions) == len({q.id for q in questions}) == 200
    assert all(q.answer for q in questions)


def test_range_then_limit():
    everything = tasks.load("pocket")
    assert tasks.load("pocket", 2, slice(10, 20)) == everything[10:12]
    assert tasks.load("pocket", span=slice(198, None)) == everything[198:]
    assert tasks.load("pocket", span=slice(3)) == everything[:3]


def test_a_file_may_leave_out_answer_and_id(tmp_path):
    path = write(
        tmp_path,
        {"question": "a"},
        "",
        {"question": "b", "answer": 8},
        {"question": "c", "id": 3, "n": 5},
    )
    first, second, third = tasks.load(path)
    assert (first.id, first.answer) == ("mine-0001", None)
    assert (second.id, second.answer) == ("mine-0003", "8")
    assert (third.id, third.extra) == ("3", {"n": 5})


@pytest.mark.parametrize(
    ("line", "gold"),
    [
        ('{"question": "a", "answer": NaN}', None),
        ('{"question": "a", "answer": null}', None),
        ('{"question": "a", "answer": ""}', None),
        ('{"question": "a", "answer": "  "}', None),
        ('{"question": "a", "gold": NaN, "answer": "8"}', "8"),
        ('{"problem": "a", "expected_answer": "8"}', "8"),
        ('{"question": "a", "answer": "8", "id": null}', "8"),
        ('{"question": "a", "answer": "8", "id": NaN}', "8"),
        ('{"question": "a", "answer": "nan"}', "nan"),
        ('{"question": "a", "answer": 0}', "0"),
        ('{"question": null, "problem": "a", "answer": 1.5}', "1.5"),
    ],
)
def test_a_missing_answer_is_not_known_and_a_missing_id_is_ours(tmp_path, line, gold):
    """Tables write what is missing as null, NaN or nothing."""
    (question,) = tasks.load(write(tmp_path, line))
    assert (question.id, question.question, question.answer) == ("mine-0001", "a", gold)


def test_a_number_as_id_is_whole(tmp_path):
    """A column of numbers with missing ones is a column of floats."""
    found = tasks.load(
        write(tmp_path, '{"question": "a", "id": 7.0}', '{"question": "a", "id": 8}')
    )
    assert [question.id for question in found] == ["7", "8"]


@pytest.mark.parametrize("task", ["math500", "aime24", "aime25", "aime26", "amc23"])
@pytest.mark.parametrize("answer", ["null", "NaN", '""'])
def test_a_row_of_a_data_set_without_an_answer_has_none(tmp_path, task, answer):
    row = f'{{"id": 1, "problem": "a", "question": "a", "answer": {answer}}}'
    (question,) = tasks.load(task, file=write(tmp_path, row))
    assert question.answer is None


def test_a_record_may_be_asked_again(tmp_path):
    """It has the right answer as ``gold``, and what was answered as ``answer``."""
    (question,) = tasks.load(write(tmp_path, {"question": "b", "answer": 8, "gold": 7}))
    assert question.answer == "7"


def test_a_line_separator_inside_a_question_does_not_end_its_line(tmp_path):
    (question,) = tasks.load(
        write(tmp_path, json.dumps({"question": "a\u2028b"}, ensure_ascii=False))
    )
    assert question.question == "a\u2028b"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"question": "a"}', "{"], "mine.jsonl, line 2: this is not JSON"),
        (["[1]"], "mine.jsonl, line 1: expected an object"),
        (['{"q": "a"}'], "line 1: there is no 'question' text"),
        (['{"question": "  "}'], "line 1: there is no 'question' text"),
        ([r'{"question": "a \ud83d"}'], "line 1: the question has half a surrogate pair"),
        (['{"question": "a", "answer": [1]}'], "line 1: the answer must be text or a number"),
        (['{"question": "a", "answer": Infinity}'], "line 1: this is not JSON: Infinity"),
        (['{"question": "a", "answer": 1e999}'], "line 1: the answer must be a finite number"),
        (['{"question": NaN}'], "line 1: there is no 'question' text"),
        (['{"question": "a", "id": true}'], "line 1: the id must be"),
        (['{"question": "a", "id": 1.5}'], "line 1: the id must be"),
        (
            ['{"question": "a", "id": 1}', '{"question": "b", "id": "1"}'],
            "line 2: id '1' comes twice",
        ),
        ([""], "there is no question in it"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, lines, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        tasks.load(write(tmp_path, *lines))


@pytest.mark.parametrize(
    "name", ["nothing.jsonl", "gsm8k@hub", "nothing", "m.py:TASK", "gsm8k:x", ""]
)
def test_no_such_task_names_those_there_are(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        tasks.load(name)
    assert "lr-sglang tasks" in caught.value.hint or ".py" in name


def test_a_range_past_the_end_is_refused():
    with pytest.raises(ConfigError, match="no question is left; it has 200"):
        tasks.load("pocket", span=slice(200, None))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{17}.", "17"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{3} \fboxed{4}", "4"),
        (r"\boxed{5} and then \boxed{cut o", "5"),
        (r"\boxed{", None),
        ("17", None),
        ("", None),
    ],
)
def test_the_last_whole_box_counts(text, answer):
    assert boxed.boxed(text) == answer


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("17", "17.0", True),
        ("1,234", "1234", True),
        (r"1{,}234", "1234", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac12", "1/2", True),
        (r"\text{Yes}", "yes", True),
        (r"\left( 1, 2 \right)", "(1,2)", True),
        ("$5$", "5", True),
        (r"\$18", "18", True),
        (r"$\$18.00$", "18", True),
        (r"5\%", "5", True),
        ("-3", "−3", True),
        ("+4", "4", True),
        (".5", "1/2", True),
        (r"10\,000", "10000", True),
        ("17.", "17", True),
        ("17", "71", False),
        ("1 2", "12", False),
        ("1/0", "0", False),
        ("", "", False),
        ("x", "y", False),
        ("1/3", "0.33", False),
        ("(1,2)", "(1,3)", False),
        ("5", "-5", False),
    ],
)
def test_which_answers_are_the_same(one, other, same):
    assert boxed.same(one, other) is same
    assert boxed.same(other, one) is same


def test_what_is_not_known_is_not_wrong():
    assert boxed.correct("1", None) is None
    assert boxed.correct(None, "1") is False
    assert boxed.correct("4", r"2 + 2 makes \boxed{4}") is True


def test_modes_go_side_by_side():
    questions = tasks.load("pocket", 2)
    order = [item.key for item in plan(questions, ("a", "b"), 2)]
    assert order[:4] == [
        ("pocket-0001", 0, "a"),
        ("pocket-0001", 0, "b"),
        ("pocket-0001", 1, "a"),
        ("pocket-0001", 1, "b"),
    ]
    assert len(set(order)) == 8
