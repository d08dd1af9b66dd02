"""Real SGLang servers for the end-to-end tests, started once for all of them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import ROLES, Limits, Lookahead, Sampling, TokenLayer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import Fleet, launch, load_deployment, override_all
from lr_sglang.runtimes.connect import connected
from lr_sglang.steps.step import DELIMITER
from lr_sglang.steps.trace import Trace
from tests import ROOT
from tests.serving import Process, serving, until_idle

# A folder with other models called target, draft and judge, to run the same tests on.
MODELS = os.environ.get("LR_SGLANG_TEST_MODELS", "")


@dataclass
class Pocket:
    """The pocket deployment, up and running."""

    roles: dict[str, RuntimeBackend]
    fleet: Fleet

    @property
    def attach(self) -> list[str]:
        """Command-line options that attach to it."""
        return [word for role in ROLES for word in (f"--{role}", self.fleet.urls[role])]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share servers come first: two cores are enough for one set of servers, and tests
    with others of their own have no idle ones beside them.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")
    items.sort(key=lambda item: _turn(item) if here in item.path.parents else 4)


def _turn(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return 2 if "thinking" in names else 1 if "pocket" in names else 3


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a draft takes seconds, and does not hang."""
    monkeypatch.setattr("lr_sglang.algorithm.reader.DRAFT_SECONDS", 60.0)


@pytest.fixture(scope="session")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pocket]:
    """Starts three servers, once per session. Tests that use it share them: leave
    nothing running.
    """
    deployment = load_deployment("pocket")
    for role in ROLES if MODELS else ():
        deployment = override_all(deployment, {role: f"{MODELS}/{role}"})
    # The target reports when each request entered it, so that its reuse of prefixes is known
    # exactly; speculation has servers of its own (test_token_layer.py).
    target = deployment.runtimes["target"].replace(
        extra={"enable-metrics": True}, token_layer=TokenLayer()
    )
    deployment = deployment.replace(runtimes={**deployment.runtimes, "target": target})
    with (
        launch(deployment, tmp_path_factory.mktemp("logs"), timeout=280) as fleet,
        connected(fleet) as roles,
    ):
        yield Pocket(roles, fleet)


# A template that reads all that SGLang gives to one: roles, names, calls, results, arguments.
RICH = ROOT / "tests/data/rich.jinja"
FED_TOKENS = 5  # few, for answers whose every pass takes as many rows


@dataclass
class Stand:
    """Servers of the models that think, and the endpoint before them."""

    fleet: Fleet
    endpoint: Process


@pytest.fixture(scope="session")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Servers of the models that think, and an endpoint that answers losslessly: the draft feeds
    the target. The draft's own server renders by another template.
    """
    folder = tmp_path_factory.mktemp("thinking")
    models = {role: f"pocket:{role}-thinks" for role in ("target", "draft")}
    deployment = override_all(load_deployment("pocket"), models)
    runtimes = {role: deployment.runtimes[role] for role in models}
    runtimes["target"] = runtimes["target"].replace(
        token_layer=TokenLayer("fed", tokens=FED_TOKENS)
    )
    runtimes["draft"] = runtimes["draft"].replace(extra={"chat-template": str(RICH)})
    options = ("--mode", "lossless", "--verifier", "exact", "-o", "serve.model=thinker")
    with (
        launch(deployment.replace(runtimes=runtimes), folder, timeout=280) as fleet,
        serving(folder, fleet.urls, *options) as endpoint,
    ):
        yield Stand(fleet, endpoint)


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


def assert_idle(roles: Mapping[str, RuntimeBackend], within: float = 10.0) -> None:
    """None of their runtimes keeps a request."""
    until_idle({role: backend.transport.url for role, backend in roles.items()}, within)


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
