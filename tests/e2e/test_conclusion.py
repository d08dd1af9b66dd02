"""What follows a judged thinking is what a plain request after the same text and seed writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lr_sglang import tasks
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes.connect import connected
from lr_sglang.steps.request import Request
from lr_sglang.steps.tree import Verdict
from lr_sglang.tasks.task import messages
from lr_sglang.verifiers.exact import Exact
from tests import FULL
from tests.e2e.conftest import Stand

PROBLEMS = tasks.load("pocket", limit=40 if FULL else 4)


class SameLength:
    """Accepts a draft of about the length of the target's version."""

    name = "same length"

    def verify(self, inquiry: Any) -> Verdict:
        target, draft = inquiry.pair.target, inquiry.pair.draft
        return Verdict(abs(len(target.ids) - len(draft.ids)) < 8, self.name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_conclusion_is_a_plain_requests_with_its_seed(
    thinking: Stand, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, seed=7)
    with connected(thinking.fleet) as roles:
        target = roles["target"]

        async def both(question: str) -> tuple[Any, list[int]]:
            job = AnswerRequest(
                Lookahead(depth=4), sampling, Limits(max_tokens=400), verifier=SameLength()
            )
            job.conclusion = Exact()
            await run_program(lookahead, messages(question), job, backend=target)
            trace = job.trace
            if not trace.conclusion:
                return trace, []
            start = trace.conclusion["tokens"]
            prompt = target.tokenizer.chat([{"role": "user", "content": question}], True).ids
            params = {
                "temperature": temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": 400 - start,
                "sampling_seed": trace.conclusion["seed"],
            }
            body = {"input_ids": [*prompt, *trace.ids[:start]], "sampling_params": params}
            reply = await target.transport.generate(body, Request(), 60)
            return trace, reply["output_ids"]

        async def all_of_them() -> list[tuple[Any, list[int]]]:
            return await asyncio.gather(*(both(one.question) for one in PROBLEMS))

        made = call(all_of_them(), target.loop)
    concluded = [(trace, plain) for trace, plain in made if trace.conclusion]
    assert len(concluded) >= len(made) / 2
    for trace, plain in concluded:
        assert list(trace.ids[trace.conclusion["tokens"] :]) == plain
        assert trace.conclusion["text"] == "text"
    assert any(trace.tokens()["judged"] for trace, _ in concluded)
