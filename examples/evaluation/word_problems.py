"""The questions of questions.jsonl as a task of inspect_ai: the last number of an answer counts."""

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def word_problems():
    fields = FieldSpec(input="problem", target="expected_answer", id="id")
    file = Path(__file__).with_name("questions.jsonl")
    return Task(json_dataset(str(file), fields), solver=generate(), scorer=match(numeric=True))
