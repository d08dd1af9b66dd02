"""Answers on the pocket deployment, and what must hold of them."""

from collections.abc import Mapping

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.step import DELIMITER
from lr_sglang.steps.trace import Trace
from tests.e2e.conftest import Pocket
from tests.serving import in_flight, until


def ask(
    pocket: Pocket,
    question: tasks.Question,
    look: Lookahead,
    sampling: Sampling,
    most: int = 300,
    plain: bool = False,
    sample: int = 0,
) -> Trace:
    """One answer, by lookahead or plain."""
    setup = verifiers.Setup(pocket.roles, "pocket")
    verifier = None if plain else verifiers.make_verifier(look.verifier, setup)
    limits, about = Limits(max_tokens=most), {"question": question.id, "sample": sample}
    request = AnswerRequest(look, sampling, limits, verifier=verifier, **about)
    asked = [{"role": "user", "content": question.question}]
    (autoregressive if plain else lookahead).run(asked, request, backend=pocket.roles["target"])
    return request.trace


def answer(
    pocket: Pocket,
    question: tasks.Question,
    schedule: str | None,
    temperature: float,
    verifier: str,
    depth: int = 6,
    most: int = 100,
) -> Trace:
    """One question; ``schedule`` None is the baseline. ``most`` is the tokens of a step."""
    look = Lookahead(
        schedule=schedule or "async", depth=depth, verifier=verifier, max_step_tokens=most
    )  # type: ignore[arg-type]
    return ask(pocket, question, look, Sampling(temperature=temperature), plain=not schedule)


def assert_idle(roles: Mapping[str, RuntimeBackend], within: float = 1.0) -> None:
    """A load is as of the scheduler's last step, so it may lag a little."""
    urls = {role: backend.transport.url for role, backend in roles.items()}
    until(lambda: not any(in_flight(urls).values()), within)


def assert_complete(trace: Trace) -> None:
    """What every record of a finished answer must satisfy."""
    tokens = trace.tokens()
    assert tokens["used"] + tokens["wasted"] == tokens["generated"]
    assert tokens["used"] == len(trace.ids) == sum(s.tokens for s in trace.steps)
    assert trace.text == "".join(s.text for s in trace.steps)
    assert trace.finish in ("stop", "length")
    assert all(b.outcome is not None and b.ended is not None for b in trace.branches)
    for step in trace.steps:
        versions = step.draft_texts if step.source == "draft" else (step.target_text,)
        assert step.outcome == "written" or step.text in versions
    assert all(step.text.endswith(DELIMITER) for step in trace.steps[:-1])
