"""From a row of a published data set to a question, one function a data set. A missing column is a
KeyError.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from typing import Any

from lr_sglang.tasks.question import Question, Row

SEED = 0  # of the order of GPQA's choices
LETTERS = "ABCDEFGHIJ"


def gsm8k(row: Row, number: int) -> Question:
    """openai/gsm8k: the answer is a solution that ends in ``#### 18``."""
    solution, mark, gold = str(row["answer"]).rpartition("####")
    if not mark:
        raise KeyError("####")
    name = f"gsm8k-test-{number:04d}"
    return Question(
        name, row["question"], gold.strip().replace(",", ""), {"solution": solution.strip()}
    )


def math500(row: Row, number: int) -> Question:
    """HuggingFaceH4/MATH-500."""
    about: Row = {key: row[key] for key in ("subject", "level") if key in row}
    return Question(
        str(row.get("unique_id") or f"math500-{number:03d}"), row["problem"], row["answer"], about
    )


def aime24(row: Row, number: int) -> Question:
    """HuggingFaceH4/aime_2024; the reference's aime-2024.jsonl has the same columns."""
    return Question(
        f"aime24-{row['id']}", row["problem"], str(row["answer"]), {"url": row.get("url", "")}
    )


def aime25(row: Row, number: int) -> Question:
    """math-ai/aime25: AIME I 1 to 15, then AIME II 1 to 15."""
    return Question(f"aime25-{number + 1:02d}", row["problem"], str(row["answer"]))


def amc23(row: Row, number: int) -> Question:
    """math-ai/amc23; some versions write the answers as 27.0."""
    if "url" not in row and "id" not in row:
        raise KeyError("id")
    gold = re.sub(r"\.0$", "", str(row["answer"]))
    return Question(f"amc23-{row.get('id', number)}", row["question"], gold)


def gpqa(row: Row, number: int) -> Question:
    """Idavidrein/gpqa: the right choice and three wrong ones."""
    wrong = [row[f"Incorrect Answer {n}"] for n in (1, 2, 3)]
    about = {key: row[key] for key in ("High-level domain", "Subdomain") if row.get(key)}
    return choice(row["Record ID"], row["Question"], row["Correct Answer"], wrong, about)


def choice(
    name: str, question: str, right: str, wrong: list[str], about: Row | None = None
) -> Question:
    """A question with lettered choices. Their order depends on the id and the seed only, not on the
    source's order.
    """
    choices = sorted([right.strip(), *(text.strip() for text in wrong)])
    random.Random(f"{SEED}:{name}").shuffle(choices)
    listed = "\n".join(f"{letter}) {text}" for letter, text in zip(LETTERS, choices, strict=False))
    gold = LETTERS[choices.index(right.strip())]
    return Question(
        name, f"{question.strip()}\n\n{listed}", gold, {"choices": choices, **(about or {})}
    )


def humaneval(row: Row, number: int) -> Question:
    """openai/openai_humaneval. The tests stay out: other tools grade the answers."""
    asked = f"Complete this Python function:\n\n```python\n{row['prompt'].rstrip()}\n```\n"
    about = {key: row[key] for key in ("prompt", "entry_point")}
    return Question(row["task_id"], asked, None, about)


def livecodebench(row: Row, number: int) -> Question:
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


def mt_bench(row: Row, number: int) -> Question:
    """HuggingFaceH4/mt_bench_prompts: the first turn is asked."""
    about = {
        "category": row["category"],
        "turns": list(row["prompt"]),
        "reference": list(row["reference"]),
    }
    return Question(f"mt-bench-{row['prompt_id']}", row["prompt"][0], None, about)
