"""Questions from tasks and files, and the grading of boxed answers."""

import json
import sys
import types

import pytest

from lr_sglang import tasks
from lr_sglang.errors import ConfigError
from lr_sglang.tasks import TaskUnavailable, boxed, catalogue
from lr_sglang.tasks.task import Task


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
    assert tasks.load("pocket", 3) == questions[:3]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ('{"question": "a"}\n{"question": "b"}\nnonsense', "b"),
        ('question,answer\na,1\nb,2\nc,"nonsense', "b"),
    ],
    ids=["lines", "table"],
)
def test_a_limit_applies_while_a_file_is_read(tmp_path, text, last):
    assert [q.question for q in tasks.load(write(tmp_path, text), 2)] == ["a", last]
    with pytest.raises(ConfigError, match=r"mine\.jsonl, line "):
        tasks.load(write(tmp_path, text), 3)


def test_a_limit_applies_while_a_function_gives_questions(tmp_path):
    code = "from itertools import count\nfrom lr_sglang.tasks import Question\n"
    code += "def endless():\n    for n in count():\n        yield Question(str(n), f'{n} + 1?')\n"
    (tmp_path / "mine.py").write_text(code)
    found = tasks.get(f"{tmp_path}/mine.py:endless")
    for limit in (3, 2):
        assert [q.id for q in found.questions(limit=limit)] == ["0", "1", "2"][:limit]


# Each with what is read of it: id, question, answer and what else there is.
ARRAY = [{"question": "a", "answer": 2}, {"problem": "b", "id": "x"}]
ARRAYS = [("mine-0001", "a", "2", {}), ("x", "b", None, {})]
FILES = [
    # a line may lack answer and id
    (
        [{"question": "a"}, "", {"question": "b", "answer": 8}, {"question": "c", "id": 3, "n": 5}],
        [
            ("mine-0001", "a", None, {}),
            ("mine-0003", "b", "8", {}),
            ("3", "c", None, {"n": 5}),
        ],
    ),
    # a file may be one array
    ([json.dumps(ARRAY)], ARRAYS),
    ([json.dumps(ARRAY, indent=1)], ARRAYS),
    # a number as id is whole: a column of numbers with missing ones is a column of floats
    (
        ['{"question": "a", "id": 7.0}', '{"question": "a", "id": 8}'],
        [("7", "a", None, {}), ("8", "a", None, {})],
    ),
    # a record has the right answer as gold, and what was answered as answer
    ([{"question": "b", "answer": 8, "gold": 7}], [("mine-0001", "b", "7", {"answer": 8})]),
    # as other tools write these names
    (['{"Question": "a", "ANSWER": 2, "Id": 4}'], [("4", "a", "2", {})]),
    # a table, as spreadsheets write it: other columns, empty cells and rows, lines in a cell
    (
        ["question,answer", "a,42", '"1,000\n+ 1?","1,001"', ",", "", "b,", "c"],
        [
            ("mine-0001", "a", "42", {}),
            ("mine-0002", "1,000\n+ 1?", "1,001", {}),
            ("mine-0003", "b", None, {}),
            ("mine-0004", "c", None, {}),
        ],
    ),
    (["Id ;Level; Question", "x;;a", "y;2;b;"], [("x", "a", None, {}), ("y", "b", None, {"Level": "2"})]),
    (["problem\tgold", "a\t2"], [("mine-0001", "a", "2", {})]),
    (["question", "\"a, b\""], [("mine-0001", "a, b", None, {})]),
    # a line separator inside a question does not end its line
    (['{"question": "a\u2028b"}'], [("mine-0001", "a\u2028b", None, {})]),
    # nor does a line become a table by its words, or by its length
    (['{"problem": "Take this, problem, and solve it"}'], [("mine-0001", "Take this, problem, and solve it", None, {})]),
    (['{"question": "' + "a" * 150_000 + '"}'], [("mine-0001", "a" * 150_000, None, {})]),
    # tables write what is missing as null, NaN or nothing
    *(([line], [("mine-0001", "a", gold, more)]) for line, gold, more in (
        ('{"question": "a", "answer": NaN}', None, {"answer": None}),
        ('{"question": "a", "answer": null}', None, {"answer": None}),
        ('{"question": "a", "answer": ""}', None, {}),
        ('{"question": "a", "answer": "  "}', None, {}),
        ('{"question": "a", "gold": NaN, "answer": "8"}', "8", {"gold": None}),
        ('{"problem": "a", "expected_answer": "8"}', "8", {}),
        ('{"question": "a", "answer": "8", "id": null}', "8", {}),
        ('{"question": "a", "answer": "8", "id": NaN}', "8", {}),
        ('{"question": "a", "answer": "nan"}', "nan", {}),
        ('{"question": "a", "answer": 0}', "0", {}),
        ('{"question": null, "problem": "a", "answer": 1.5}', "1.5", {"question": None}),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "read"), FILES)
def test_what_is_read_of_a_file(tmp_path, lines, read):
    found = tasks.load(write(tmp_path, *lines))
    assert [(q.id, q.question, q.answer, q.extra) for q in found] == read


@pytest.mark.parametrize("task", ["math500", "aime24", "aime25", "aime26", "hmmt-feb-26", "amc23"])
@pytest.mark.parametrize("answer", ["null", "NaN", '""'])
def test_a_row_of_a_data_set_without_an_answer_has_none(tmp_path, task, answer):
    row = f'{{"id": 1, "problem": "a", "question": "a", "answer": {answer}}}'
    (question,) = tasks.load(task, file=write(tmp_path, row))
    assert question.answer is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"question": "a"}', "{"], "mine.jsonl, line 2: this is not JSON"),
        (["[1]"], "mine.jsonl, object 1: expected an object"),
        (['{"q": "a"}'], "line 1: there is no 'question' text"),
        (['{"question": "  "}'], "line 1: there is no 'question' text"),
        ([r'{"question": "a \ud83d"}'], "line 1: the question has half a surrogate pair"),
        (['{"question": "a", "answer": [1]}'], "line 1: the answer must be text or a number"),
        (['{"question": "a", "answer": Infinity}'], "line 1: this is not JSON: Infinity"),
        (['{"question": "a", "answer": 1e999}'], "line 1: the answer must be a finite number"),
        (['{"question": NaN}'], "line 1: there is no 'question' text"),
        (['{"question": "a", "id": true}'], "line 1: the id must be"),
        (['{"question": "a", "id": 1.5}'], "line 1: the id must be"),
        (['{"prompt": "a", "Answer": 2}'], "there is no 'question' text; it has prompt, Answer"),
        (['{"question": "a"} {}'], "line 1: this is not JSON: Extra data"),
        (['[{"question": "a"},', "3]"], "mine.jsonl, object 2: expected an object"),
        (["", '[{"question": "a"},', '{"question": "b"'], "this is not JSON: .*: line 3"),
        (['[{"question": "a"}]', '{"question": "b"}'], "this is not JSON: Extra data: line 2"),
        (["question,answer"], "there is no question in it"),
        (["question,answer", "a,2,3"], "line 2: it has more cells than the first row has names"),
        (["question,answer", ",2"], "line 2: there is no 'question' text; it has answer"),
        (["question,answer", 'a,"2', "b,3"], "line 2: this is not CSV: unexpected end of data"),
        (["question,id", '"a', 'b",1', "c,1"], "line 4: id '1' comes twice"),
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
@pytest.mark.usefixtures("here")
def test_no_such_task_names_those_there_are(name):
    with pytest.raises(ConfigError) as caught:
        tasks.load(name)
    assert "lr-sglang tasks" in caught.value.hint or ".py" in name


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
    assert boxed.same_answer(one, other) is same
    assert boxed.same_answer(other, one) is same


def test_what_is_not_known_is_not_wrong():
    assert boxed.correct("1", None) is None
    assert boxed.correct(None, "1") is False
    assert boxed.correct("4", r"2 + 2 makes \boxed{4}") is True


# -- where tasks come from: the hub (a stand-in), files, and a user's own


PAPER = {
    "gsm8k",
    "math500",
    "aime24",
    "aime25",
    "amc23",
    "gpqa-diamond",
    "humaneval",
    "livecodebench",
    "mt-bench",
}


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the package datasets: gives the rows that a test puts there, and keeps what it
    was asked.
    """
    module = types.ModuleType("datasets")
    module.rows, module.asked = [], []

    def load_dataset(*names, **options):
        module.asked.append((names, options))
        if isinstance(module.rows, Exception):
            raise module.rows
        return module.rows

    module.load_dataset = load_dataset
    monkeypatch.setattr("lr_sglang.hub.answers", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def gsm8k_rows(count=catalogue.GSM8K_TEST):
    return [
        {"question": f"Question {n}?", "answer": f"So 1,00{n}.\n#### 1,00{n}"} for n in range(count)
    ]


def test_the_papers_tasks_are_there_each_with_a_data_set_at_one_revision():
    newer = {"aime26", "hmmt-feb-26", "livecodebench-v6"}
    assert PAPER | newer | {"pocket"} == set(tasks.task_names())
    for name in PAPER:
        task = tasks.get(name)
        assert task.about and task.choice
        assert len(task.hub.revision) == 40


def test_gsm8k_is_always_the_same_hundred(hub):
    hub.rows = gsm8k_rows()
    chosen = tasks.load("gsm8k")
    assert hub.asked[0] == (
        ("openai/gsm8k", "main"),
        {"split": "test", "revision": "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"},
    )
    assert len(chosen) == 100
    assert {q.id for q in chosen} == catalogue.gsm8k_choice()
    assert chosen[0].answer == "10013"  # after ####, without its commas
    assert len(tasks.load("gsm8k:all")) == 1319


def test_without_network_or_file_the_error_says_every_step(hub):
    hub.rows = ConnectionError("Couldn't reach it")
    with pytest.raises(TaskUnavailable) as caught:
        tasks.load("amc23")
    assert "amc23" in caught.value.message and "Couldn't reach it" in caught.value.message
    for part in (
        "load_dataset('math-ai/amc23', split='test'",
        "to_json('amc23.jsonl')",
        "HF_HUB_OFFLINE=1",
        "--input amc23.jsonl",
    ):
        assert part in caught.value.hint
    with pytest.raises(TaskUnavailable, match=r"(?s)Hint: .*agree to the terms"):
        tasks.load("gpqa-diamond")


def test_no_hub_is_noticed_before_each_file_is_tried(monkeypatch):
    pytest.importorskip("datasets")
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("lr_sglang.hub.answers", lambda: False)
    with pytest.raises(TaskUnavailable):
        tasks.load("gsm8k")
    assert datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE


def test_task_with_input_reads_the_file_as_that_task(tmp_path):
    path = tmp_path / "any.jsonl"
    path.write_text("\n".join(map(json.dumps, gsm8k_rows())))
    assert len(tasks.load("gsm8k", file=path)) == 100
    assert len(tasks.load("gsm8k", 5, file=path)) == 5
    with pytest.raises(ConfigError, match="No such file"):
        tasks.load("gsm8k", file=tmp_path / "none.jsonl")


@pytest.mark.parametrize("task", sorted(catalogue.CATALOGUE))
def test_a_file_in_our_own_form_is_read_as_any_task(tmp_path, task):
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    (question,) = tasks.load(task, file=tmp_path / "q.jsonl")
    assert (question.question, question.answer) == ("1 + 1?", "2")


def gpqa(right="r", wrong=("a", "b", "c"), name="rec1"):
    return {
        "Record ID": name,
        "Question": "Q?",
        "Correct Answer": right,
        **{f"Incorrect Answer {n}": text for n, text in enumerate(wrong, 1)},
    }


def test_gpqas_choices_are_shuffled_by_the_id_and_not_by_the_source():
    first, second = catalogue.gpqa(gpqa(), 0), catalogue.gpqa(gpqa(wrong=("c", "a", "b")), 7)
    assert first.question == second.question and first.answer == second.answer
    assert first.extra["choices"]["ABCD".index(first.answer)] == "r"
    assert {catalogue.gpqa(gpqa(name=f"rec{n}"), 0).answer for n in range(50)} == set("ABCD")


def lcb(day="2024-09-01", starter=""):
    return {
        "question_id": f"q{day}{bool(starter)}",
        "question_content": "Add.",
        "starter_code": starter,
        "contest_date": f"{day}T00:00:00",
        "public_test_cases": "[]",
        "private_test_cases": "[]",
        "metadata": "{}",
    }


def test_livecodebench_is_the_papers_months_and_its_tests_stay_out(hub):
    hub.rows = [lcb(d) for d in ("2024-07-31", "2024-08-01", "2025-01-31", "2025-02-01")] + [
        lcb(starter="class S:")
    ]
    found = tasks.load("livecodebench")
    assert [q.extra["contest_date"] for q in found] == ["2024-08-01", "2025-01-31", "2024-09-01"]
    assert "class S:" in found[-1].question and "standard input" in found[0].question
    assert not {"private_test_cases", "public_test_cases"} & found[0].extra.keys()
    assert [url.rpartition("/")[2] for url in hub.asked[0][1]["data_files"]["test"]] == [
        "test4.jsonl",
        "test5.jsonl",
    ]


def test_what_datasets_writes_is_read_as_what_it_loads(tmp_path):
    """The way around a missing network: loaded there, written with to_json, read here."""
    datasets = pytest.importorskip("datasets")
    source, written = tmp_path / "test5.jsonl", tmp_path / "livecodebench.jsonl"
    source.write_text(
        "\n".join(json.dumps(lcb(day)) for day in ("2024-07-31", "2024-08-01", "2025-01-31"))
    )
    loaded = datasets.load_dataset(
        "json", data_files={"test": [str(source)]}, split="test", cache_dir=str(tmp_path / "cache")
    )
    loaded.to_json(str(written))
    days = [catalogue.livecodebench(row, n).extra["contest_date"] for n, row in enumerate(loaded)]
    assert days == ["2024-07-31", "2024-08-01", "2025-01-31"]
    assert [q.extra["contest_date"] for q in tasks.load("livecodebench", file=written)] == days[1:]


def test_mt_bench_asks_the_first_turn(hub):
    hub.rows = [
        {"category": "math", "prompt": ["one", "two"], "reference": ["r"], "prompt_id": 101}
    ]
    (question,) = tasks.load("mt-bench")
    assert (question.id, question.question, question.extra["turns"]) == (
        "mt-bench-101",
        "one",
        ["one", "two"],
    )


def test_a_row_that_is_no_question_is_named(hub):
    hub.rows = [{"question": "a"}]
    with pytest.raises(ConfigError, match="row 1: this row is no question"):
        tasks.load("amc23")


THIRD = """
from lr_sglang.tasks import Question, Task

def right(text, question):
    return question.answer in text

TASK = Task("mine", "of mine", load=lambda: [Question("1", "a?", "x"), Question("2", "b?", "y")], grader=right)

def make():
    return TASK

def questions():
    yield Question("1", "a?", "x")

WRONG = 5

def broken():
    raise RuntimeError("no")
"""


def test_a_task_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(THIRD)
    for name in ("TASK", "make"):
        found = tasks.get(f"{path}:{name}")
        assert [q.answer for q in found.questions()] == ["x", "y"] and found.grader(
            "x", found.questions()[0]
        )
    assert len(tasks.load(f"{path}:questions")) == 1
    for name in ("WRONG", "broken", "missing"):
        with pytest.raises(ConfigError, match=name if name != "WRONG" else "expected a Task"):
            tasks.get(f"{path}:{name}")


def raises():
    yield tasks.Question("1", "a?")
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: Task("x", grader="maths"), "there is no grader 'maths'"),
        # questions that no record can hold, before anything is asked
        *(
            (Task("theirs", load=load).questions, "task theirs: ")
            for load in (
                lambda: [tasks.Question("1", "a?", {1, 2})],
                lambda: [tasks.Question("1", "a?", "x", {"when": object()})],
                lambda: [tasks.Question(["1"], "a?", "x")],
                lambda: ["What?"],
                raises,
            )
        ),
    ],
)
def test_what_is_no_question_of_a_task_is_refused(use, said):
    with pytest.raises(ConfigError, match=said):
        use()
