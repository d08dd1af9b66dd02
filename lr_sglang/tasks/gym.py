"""Questions that the package reasoning-gym makes, by generator, size and seed.

It cannot be installed beside SGLang's flashinfer (both pin tabulate, differently), so most users
will see the hint.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.tasks.question import Question
from lr_sglang.tasks.task import Task, TaskUnavailable

SIZE, SEED = 50, 0
# Whether a generator accepts an answer. Runs in the sandbox, because some generators evaluate the
# answer as Python.
SCORE = """
def correct(name, answer, entry):
    import reasoning_gym
    return reasoning_gym.create_dataset(name, size=1, seed=0).score_answer(answer, entry) >= 1
"""
_SPEC = re.compile(r"(?P<name>\w+)(?P<options>(?:,(?:size|seed)=\d+)*)")


def task(spec: str) -> Task:
    """The task of ``GENERATOR[,size=N][,seed=N]``.

    Raises:
        ConfigError: it has another form.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise ConfigError(
            f"reasoning-gym:{spec} is no generator",
            hint="for example reasoning-gym:chain_sum,size=50,seed=1",
        )
    given = {"size": SIZE, "seed": SEED}
    for option in filter(None, found["options"].split(",")):
        key, _, value = option.partition("=")
        given[key] = int(value)
    name = found["name"]
    return Task(
        f"reasoning-gym:{spec}",
        f"made by reasoning-gym's {name}",
        load=lambda: _questions(name, **given),
        grader="reasoning-gym",
        choice=f"{given['size']} with seed {given['seed']}",
        needs="the package reasoning-gym",
    )


def missing() -> bool:
    """Whether the package is not installed."""
    return importlib.util.find_spec("reasoning_gym") is None


def _questions(name: str, size: int, seed: int) -> list[Question]:
    made = []
    for number, entry in enumerate(_generator(name, size, seed)):
        about = {"generator": name, "asked": entry["question"], "metadata": entry["metadata"]}
        made.append(
            Question(f"{name}-{seed}-{number:04d}", entry["question"], str(entry["answer"]), about)
        )
    return made


def _generator(name: str, size: int, seed: int) -> Any:
    if missing():
        code = (
            "import json, reasoning_gym; [print(json.dumps({'question': e['question'], "
            "'answer': e['answer']})) "
            f"for e in reasoning_gym.create_dataset('{name}', size={size}, seed={seed})]"
        )
        raise TaskUnavailable(
            f"reasoning-gym:{name}: the package reasoning-gym is not installed",
            hint="it pins another tabulate than SGLang's flashinfer; in an environment of its own: "
            f'pip install reasoning-gym && python -c "{code}" > {name}.jsonl, then --input '
            f"{name}.jsonl here",
        )
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed)
    except ValueError as error:
        raise ConfigError(
            f"reasoning-gym:{name}: {error}", hint="docs of reasoning-gym list its generators"
        ) from error
