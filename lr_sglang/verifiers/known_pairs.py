"""Tests a judge: its verifier is asked about pairs of steps that differ, and pairs that say the
same.

A small general model may accept nearly all steps, so that a weak draft's errors get into answers. A
judge with a prompt that it was not trained for may accept none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lr_sglang.algorithm.inquiry import Inquiry, Verifier, ask
from lr_sglang.engine.doubts import JudgeCheck
from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import converse
from lr_sglang.frontend.executor import Executor
from lr_sglang.sglang_api.interpreter import ProgramState, SglSamplingParams
from lr_sglang.steps.branch import Request
from lr_sglang.steps.step import DELIMITER, Ending, Pair, Step, Verdict

PAIRS = Path(__file__).parent / "pairs"
ALIKE = 6  # number of pairs that say the same
PROBLEM = "Solve the problem step by step."  # the prefix, for verifiers that read it


def pairs(prompt: str) -> list[tuple[str, str]]:
    """The target's and the draft's version of each pair that differs.

    Args:
        prompt: the name of a judge's prompt.
    """
    lines = (PAIRS / f"{prompt}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["target"], row["draft"]) for row in map(json.loads, lines)]


def alike(of: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs that say the same, made from others: the target's version, with and without its last
    full stop.
    """
    return [
        (text, text.removesuffix(".") if text.endswith(".") else f"{text}.")
        for text, _ in of[:ALIKE]
    ]


async def show(
    verifier: Verifier,
    roles: Mapping[str, RuntimeBackend],
    check: JudgeCheck,
    pairs: Sequence[tuple[str, str]],
) -> list[bool]:
    """Asks a verifier about all pairs concurrently; returns whether each was accepted, without
    failed verdicts. Notes in ``check`` whether the judge was asked.

    Call it on the loop of the later requests to its runtimes.

    Args:
        pairs: the target's and the draft's version of each step.
    """
    for backend in roles.values():
        backend.bind(asyncio.get_running_loop())
    target = roles["target"]
    draft = roles.get("draft", roles["target"])
    state = ProgramState(Executor(target, {}, SglSamplingParams(), target.chat_template, False))
    converse(state, [{"role": "user", "content": PROBLEM}])

    def track(_: Inquiry, asked: ProgramState) -> Request:
        executor = asked.stream_executor
        executor.request = Request()
        if getattr(executor.backend, "role", "") == "judge":
            check.asks = True
        request: Request = executor.request
        return request

    shown = [
        Inquiry(Pair(_step(one, target.tokenizer), _step(other, draft.tokenizer)), state, track)
        for one, other in pairs
    ]
    found = await asyncio.gather(
        *(ask(verifier, inquiry) for inquiry in shown), return_exceptions=True
    )
    for error in found:
        if isinstance(error, BaseException) and not isinstance(error, LookaheadError):
            raise error
    return [one.accepted for one in found if isinstance(one, Verdict) and not one.failed]


def _step(text: str, tokenizer: Tokenizer) -> Step:
    text += DELIMITER
    return Step(
        text, tokenizer.encode(text, True), Ending.DELIMITER, vocabulary=tokenizer.vocabulary
    )
