"""A program of the operator's that goes on after it has written an answer."""

import asyncio
from pathlib import Path

from lr_sglang.serve import lookahead_answer
from lr_sglang.serve.app import create_app
from lr_sglang.serve.protocol import ChatRequest
from lr_sglang.serve.replies import Summary
from lr_sglang.serve.request_options import options_of
from lr_sglang.serve.settings import Service
from tests.serving import Truth
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles

PROGRAM = """
import asyncio
from pathlib import Path

import sglang as sgl

from lr_sglang.algorithm.answer import Answer
from lr_sglang.frontend.dsl import converse, sync
from lr_sglang.programs.lookahead import write_answer


@sgl.function
async def and_more(s, messages, job):
    converse(s, messages)
    aside = s.fork(1)[0]
    async with Answer(s, job) as answer:
        await write_answer(answer)
    await asyncio.sleep(0.3)
    aside += sgl.gen("title", max_tokens=8)
    await sync(aside)
    Path(__file__).with_suffix(".title").write_text(aside["title"])
"""


def test_a_program_goes_on_after_an_answer_of_its_own(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(lookahead_answer, "PATIENCE", 0.02)
    (tmp_path / "mine.py").write_text(PROGRAM)
    model = Model(steps=3, tokens=10)
    service = Service(model="simulated", program=f"{tmp_path / 'mine.py'}:and_more")
    made = create_app(
        simulated_roles(Simulation(model, step_seconds=0.003, judge_seconds=0.001)), service
    )
    request = ChatRequest(model="simulated", messages=[{"role": "user", "content": "How many?"}])

    async def ask() -> str:
        async with made.router.lifespan_context(made):
            answer = lookahead_answer.LookaheadAnswer(
                made.state.engine, options_of(request, service)
            )
            items = [item async for item in answer.pieces()]
        assert isinstance(items[-1], Summary)
        return "".join(piece.text for pieces in items[:-1] for piece in pieces)

    assert not Truth(model).wrong("How many?", asyncio.run(ask()))
    assert (tmp_path / "mine.title").read_text(), "it was let go on to its end"
