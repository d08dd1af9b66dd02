"""The tasks that come with the package: those of the paper's Table 1 and a few more (see
docs/tasks.md), with a function for each that makes a question of a row of its data set (a missing
column is a KeyError); and a task by name.

``NAME`` or ``NAME:all`` (all of its questions) is a built-in one, and ``FILE.py:NAME`` a ``Task``
of a user, or a function that gives one or gives questions. Revisions are those that public
evaluation code pins. We have not downloaded them ourselves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import tee
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError, did_you_mean
from lr_sglang.tasks.question import Question, SourceRow, ToQuestion, as_answer, read_questions
from lr_sglang.tasks.task import CHOICE, CODE, FUNCTION, Hub, Task

SEED = 0  # of the order of GPQA's choices
LETTERS = "ABCDEFGHIJ"


def gsm8k(row: SourceRow, number: int) -> Question:
    """openai/gsm8k: the answer is a solution that ends in ``#### 18``."""
    solution, mark, gold = str(row["answer"]).rpartition("####")
    if not mark:
        raise KeyError("####")
    name = f"gsm8k-test-{number:04d}"
    return Question(
        name, row["question"], gold.strip().replace(",", ""), {"solution": solution.strip()}
    )


def math500(row: SourceRow, number: int) -> Question:
    """HuggingFaceH4/MATH-500."""
    about: SourceRow = {key: row[key] for key in ("subject", "level") if key in row}
    return Question(
        str(row.get("unique_id") or f"math500-{number:03d}"),
        row["problem"],
        as_answer(row["answer"]),
        about,
    )


def aime24(row: SourceRow, number: int) -> Question:
    """HuggingFaceH4/aime_2024; the reference's aime-2024.jsonl has the same columns."""
    return Question(
        f"aime24-{row['id']}", row["problem"], as_answer(row["answer"]), {"url": row.get("url", "")}
    )


def contest(name: str) -> ToQuestion:
    """math-ai/aime25, MathArena/aime_2026 and hmmt_feb_2026: numbered in their order."""

    def question(row: SourceRow, number: int) -> Question:
        gold = row["expected_answer"] if "expected_answer" in row else row["answer"]
        return Question(f"{name}-{number + 1:02d}", row["problem"], as_answer(gold))

    return question


def amc23(row: SourceRow, number: int) -> Question:
    """math-ai/amc23; some versions write the answers as 27.0."""
    if "url" not in row and "id" not in row:
        raise KeyError("id")
    gold = re.sub(r"\.0$", "", as_answer(row["answer"]) or "") or None
    return Question(f"amc23-{row.get('id', number)}", row["question"], gold)


def gpqa(row: SourceRow, number: int) -> Question:
    """Idavidrein/gpqa: the right choice and three wrong ones."""
    wrong = [row[f"Incorrect Answer {n}"] for n in (1, 2, 3)]
    about = {key: row[key] for key in ("High-level domain", "Subdomain") if row.get(key)}
    # Their order depends on the id and the seed only, not on the source's order.
    right = row["Correct Answer"].strip()
    choices = sorted([right, *(text.strip() for text in wrong)])
    random.Random(f"{SEED}:{row['Record ID']}").shuffle(choices)
    listed = "\n".join(f"{letter}) {text}" for letter, text in zip(LETTERS, choices, strict=False))
    return Question(
        row["Record ID"],
        f"{row['Question'].strip()}\n\n{listed}",
        LETTERS[choices.index(right)],
        {"choices": choices, **about},
    )


def humaneval(row: SourceRow, number: int) -> Question:
    """openai/openai_humaneval. The tests stay out: other tools grade the answers."""
    asked = f"Complete this Python function:\n\n```python\n{row['prompt'].rstrip()}\n```\n"
    about = {key: row[key] for key in ("prompt", "entry_point")}
    return Question(row["task_id"], asked, None, about)


def livecodebench(row: SourceRow, number: int) -> Question:
    """livecodebench/code_generation_lite. The tests stay out: other tools grade the answers."""
    starter = row["starter_code"].strip()
    if starter:
        asked = (
            f"Write it as a method of this class, with this signature:\n\n```python\n{starter}\n```"
        )
    else:
        asked = (
            "Write a program that reads the input from standard input and writes the "
            "answer to standard output."
        )
    about = {"contest_date": _day(row["contest_date"])}
    about |= {key: row[key] for key in ("question_title", "platform", "difficulty") if key in row}
    text = f"{row['question_content'].strip()}\n\n{asked}\n"
    return Question(str(row["question_id"]), text, None, about)


def _day(date: Any) -> str:
    """``2024-09-01`` of a date as text, as ``datasets`` reads it, or as it writes it (milliseconds
    since 1970).
    """
    if isinstance(date, (int, float)):
        date = datetime.fromtimestamp(date / 1000, UTC)
    return str(date)[:10]


def mt_bench(row: SourceRow, number: int) -> Question:
    """HuggingFaceH4/mt_bench_prompts: the first turn is asked."""
    about = {
        "category": row["category"],
        "turns": list(row["prompt"]),
        "reference": list(row["reference"]),
    }
    return Question(f"mt-bench-{row['prompt_id']}", row["prompt"][0], None, about)


DATA_FOLDER = Path(__file__).parent / "data"
GSM8K_TEST = 1319
GSM8K_KEPT = 100
GSM8K_SEED = 42
GPQA = "633f5ee89ab8ad4522a9f850766b73f62147ffdd"
LCB = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
LCB_FILES = ("test4.jsonl", "test5.jsonl")
LCB_V6 = ("test6.jsonl",)
MONTHS = ("2024-08-01", "2025-01-31")  # the paper's window of LiveCodeBench


def gsm8k_choice() -> frozenset[str]:
    """Ids of 100 questions of the test set. The paper does not say which 100 it drew."""
    drawn = random.Random(GSM8K_SEED).sample(range(GSM8K_TEST), GSM8K_KEPT)
    return frozenset(f"gsm8k-test-{number:04d}" for number in drawn)


def _of_gsm8k(found: list[Question]) -> list[Question]:
    chosen = gsm8k_choice()
    return [q for q in found if q.id in chosen] if len(found) == GSM8K_TEST else found


def _of_livecodebench(found: list[Question]) -> list[Question]:
    first, last = MONTHS
    return [q for q in found if first <= str(q.extra.get("contest_date", first)) <= last]


def _pocket() -> list[Question]:
    return read_questions(DATA_FOLDER / "pocket.jsonl")


_TASKS = (
    Task(
        "pocket",
        "word problems for the pocket models",
        load=_pocket,
        suffix="",
        grader="number",
        choice="200 that were held out",
    ),
    Task(
        "gsm8k",
        "grade-school word problems",
        Hub("openai/gsm8k", "test", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c", gsm8k, "main"),
        pick=_of_gsm8k,
        choice="100 of the 1319 of the test set, drawn with Random(42); gsm8k:all for all",
    ),
    Task(
        "math500",
        "500 of the competition problems of MATH",
        Hub(
            "HuggingFaceH4/MATH-500",
            "test",
            "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            math500,
        ),
    ),
    Task(
        "aime24",
        "AIME 2024, I and II",
        Hub(
            "HuggingFaceH4/aime_2024",
            "train",
            "e6cf0cd64082ada1c025717826bd40e155b1ec81",
            aime24,
        ),
        choice="all 30",
    ),
    Task(
        "aime25",
        "AIME 2025, I and II",
        Hub(
            "math-ai/aime25",
            "test",
            "563bb8404243c5f09de6ec262f2db674fe5bce9b",
            contest("aime25"),
        ),
        choice="all 30",
    ),
    Task(
        "aime26",
        "AIME 2026, I and II",
        Hub("MathArena/aime_2026", "train", "main", contest("aime26")),
        choice="all 30",
    ),
    Task(
        "hmmt-feb-26",
        "Harvard-MIT Mathematics Tournament, February 2026",
        Hub("MathArena/hmmt_feb_2026", "train", "main", contest("hmmt-feb-26")),
        choice="all 33",
    ),
    Task(
        "amc23",
        "AMC 12 of 2023",
        Hub("math-ai/amc23", "test", "80815d37005feb82cd7f8fbc6901d5d3eff43057", amc23),
        choice="the 40 of 50 that Qwen2.5-Math chose, as the paper",
    ),
    Task(
        "gpqa-diamond",
        "hard science, four choices in an order that is fixed by a seed",
        Hub("Idavidrein/gpqa", "train", GPQA, gpqa, "gpqa_diamond", gated=True),
        suffix=CHOICE,
        grader="choice",
        choice="all 198",
    ),
    Task(
        "humaneval",
        "Python functions",
        Hub(
            "openai/openai_humaneval",
            "test",
            "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
            humaneval,
        ),
        suffix=FUNCTION,
        grader="none",
        choice="all 164",
        export="evalplus",
    ),
    Task(
        "livecodebench",
        "contest problems",
        Hub("livecodebench/code_generation_lite", "test", LCB, livecodebench, files=LCB_FILES),
        suffix=CODE,
        grader="none",
        pick=_of_livecodebench,
        export="livecodebench",
        choice="August 2024 to January 2025, as the paper (its 268 are what release 5 has and "
        "release 3 has not)",
    ),
    Task(
        "livecodebench-v6",
        "contest problems",
        Hub("livecodebench/code_generation_lite", "test", LCB, livecodebench, files=LCB_V6),
        suffix=CODE,
        grader="none",
        export="livecodebench",
        choice="the 175 that release 6 has and release 5 has not",
    ),
    Task(
        "mt-bench",
        "open questions, the first turn of each",
        Hub(
            "HuggingFaceH4/mt_bench_prompts",
            "train",
            "e3a795c5e9a82ee40611c416b8a7786c73198991",
            mt_bench,
        ),
        suffix="",
        grader="none",
        choice="all 80",
    ),
)
CATALOGUE = {task.name: task for task in _TASKS}


def task_names() -> list[str]:
    """The tasks that come with the package, by name."""
    return sorted(CATALOGUE)


def find_task(spec: str) -> Task | None:
    """The task of that name; None if there is none.

    Raises:
        ConfigError: it is a user's task, and cannot be loaded.
    """
    file, name, argument = plugin_files.named(spec)
    if file and argument is None and plugin_files.expanded(file).is_file():
        plugin_files.check(file, name)
        return _made(lambda: plugin_files.find(file, name), spec)
    if file or argument not in (None, "all"):
        return None
    task = CATALOGUE.get(name)
    return replace(task, pick=None, choice="all") if task and argument else task


def get(spec: str) -> Task:
    """The task of that name.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    found = find_task(spec)
    if found is None:
        if plugin_files.inside(spec):
            raise plugin_files.unknown("task", spec, task_names(), "FILE.py:NAME")
        others = "also FILE.py:NAME; a file of questions goes with --input"
        known = f"built-in tasks: {', '.join(task_names())}; {others}"
        hint = did_you_mean(spec, task_names(), known, cutoff=0.5)
        raise ConfigError(f"there is no task {spec!r}", hint=hint)
    return found


def _made(load: Callable[[], Any], spec: str) -> Task:
    hint = "docs/tasks.md has an example"
    try:
        found = load()
        if not isinstance(found, Task) and callable(found):
            made = found()
            if isinstance(made, Task):
                found = made
            else:
                (kept,) = tee(made, 1)  # each copy begins with the first, and reads what it needs
                found = Task(found.__name__, load=lambda: copy(kept))
    except LookaheadError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"task {spec}: {error!r}", hint=hint) from error
    if not isinstance(found, Task):
        raise ConfigError(f"task {spec}: expected a Task, not {type(found).__name__}", hint=hint)
    return found
