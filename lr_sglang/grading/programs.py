"""HumanEval and LiveCodeBench: from an answer to a program with its tests."""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import zlib
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.grading import answers
from lr_sglang.grading.grade import Grade
from lr_sglang.grading.sandbox import Limits, Sandbox
from lr_sglang.tasks import gym
from lr_sglang.tasks.question import Question

MAX_TESTS_BYTES = 512 << 20  # unpacked; the largest of LiveCodeBench has about a tenth of it
LCB_SECONDS, LCB_MEMORY = 6.0, 2048  # LiveCodeBench allows 6 s a test
GYM_SECONDS, GYM_MEMORY = 30.0, 4096  # importing all of its generators takes seconds


def humaneval(
    text: str, question: Question, sandbox: Sandbox, limits: Limits | None = None
) -> Grade:
    """Whether the function passes the task's own tests.

    An answer that does not define the function is taken as its body.
    """
    about, name = question.extra, question.extra["entry_point"]
    program = answers.code(text, f"def {name}")
    if program is None:
        return Grade(False, by="tests", reason="there is no program in the answer")
    if not re.search(rf"^(?:async )?def {re.escape(name)}\b", program, re.MULTILINE):
        program = _indented(program)
    # The prompt comes first, because it has imports and helpers that an answer may leave out.
    job = {
        "program": f"{about['prompt']}\n{program}",
        "kind": "asserts",
        "function": name,
        "before": about["prompt"],
        "test": f"{about['test']}\ncheck({name})\n",
    }
    return _run(job, sandbox, limits)


def livecodebench(
    text: str, question: Question, sandbox: Sandbox, limits: Limits | None = None
) -> Grade:
    """Whether the program passes all public and hidden tests of its problem."""
    if not question.hidden:
        hint = "the tests of livecodebench are not in the records; its questions must be loaded"
        return Grade(None, by="tests", reason=hint, failed=True)
    program = answers.code(text)
    if program is None:
        return Grade(False, by="tests", reason="there is no program in the answer")
    tests = lcb_tests(question.hidden["public_test_cases"]) + lcb_tests(
        question.hidden["private_test_cases"]
    )
    if not tests:
        return Grade(None, by="tests", reason="the problem has no tests")
    limits = limits or Limits(seconds=LCB_SECONDS, memory=LCB_MEMORY)
    if tests[0].get("testtype") != "functional":
        return _run({"program": program, "kind": "stdio", "tests": tests}, sandbox, limits)
    about = question.hidden["metadata"]
    try:
        name = (json.loads(about) if isinstance(about, str) else about)["func_name"]
        calls = [_call(test) for test in tests]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"livecodebench: {question.id}: tests that cannot be read ({error!r})"
        ) from error
    return _run(
        {"program": program, "kind": "calls", "function": name, "tests": calls}, sandbox, limits
    )


def reasoning_gym(
    answer: str, question: Question, sandbox: Sandbox, limits: Limits | None = None
) -> Grade:
    """Whether the generator of the question accepts the final answer."""
    about = question.extra
    entry = {"question": about["asked"], "answer": question.answer, "metadata": about["metadata"]}
    arguments = json.loads(json.dumps([about["generator"], answer, entry], default=str))
    test = {"arguments": arguments, "expected": True}
    job = {"program": gym.SCORE, "kind": "calls", "function": "correct", "tests": [test]}
    limits = limits or Limits(seconds=GYM_SECONDS, memory=GYM_MEMORY)
    return _run(job, sandbox, limits, "reasoning-gym", answer)


def _call(test: dict[str, Any]) -> dict[str, Any]:
    """A call by a test whose input has one argument per line."""
    arguments = [json.loads(line) for line in test["input"].split("\n") if line.strip()]
    return {"arguments": arguments, "expected": json.loads(test["output"])}


def lcb_tests(packed: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reads LiveCodeBench's tests: JSON, or base64 of zlib of a pickle of JSON.

    Raises:
        ConfigError: it is neither. A pickle may hold only a text, because any other could run code.
    """
    if not isinstance(packed, str):
        return packed
    try:
        text: str = packed
        if not packed.lstrip().startswith("["):
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(packed, validate=True), MAX_TESTS_BYTES)
            if unpacker.unconsumed_tail:
                raise ValueError("too long")
            text = _TextOnly(io.BytesIO(data)).load()
        found: list[dict[str, Any]] = json.loads(text)
        return [test for test in found if {"input", "output"} <= test.keys()]
    except (
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        EOFError,
        zlib.error,
        pickle.UnpicklingError,
    ) as error:
        raise ConfigError(f"livecodebench: tests that cannot be read ({error!r})") from error


class _TextOnly(pickle.Unpickler):
    """Refuses all classes; a text needs none."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in the tests")


def _indented(body: str) -> str:
    """A body with the indentation that it needs after the prompt's last line."""
    first = next((line for line in body.split("\n") if line.strip()), "")
    if first[:1].isspace():
        return body
    return "\n".join(f"    {line}" if line.strip() else line for line in body.split("\n"))


def _run(
    job: dict[str, Any],
    sandbox: Sandbox,
    limits: Limits | None,
    by: str = "tests",
    answer: str | None = None,
) -> Grade:
    done = sandbox.run(job, limits)
    return Grade(done.passed, answer, by, done.reason, extra={"walls": list(done.walls)})
