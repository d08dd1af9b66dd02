"""The watch over runtimes: one that is busy is not down, one that hangs or cannot be reached is."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from lr_sglang.algorithm.judging import PATIENCE
from lr_sglang.config import ROLES
from lr_sglang.errors import BadReply, RuntimeBusy, RuntimeDown, RuntimeRefused
from lr_sglang.runtimes.attach import TOKENIZED
from lr_sglang.serve import health
from lr_sglang.serve.health import POLL_SECONDS, Health, RuntimeAway, Watch
from lr_sglang.serve.settings import Service
from lr_sglang.steps.branch import Request
from tests import run_by
from tests.scripted import CharTokenizer
from tests.simulated.clock import run_virtually


class Runtime:
    """A transport that does what it is told: go well, or fail."""

    def __init__(self):
        self.fails, self.tokens, self.asked = None, [], []

    async def generate(self, payload, request, timeout):
        if self.fails:
            raise self.fails
        return {"text": "a"}

    async def get(self, path, timeout):
        self.asked.append(path)
        if self.fails:
            raise self.fails
        return {}

    async def post(self, path, body, timeout):
        return {"/tokenize": {"tokens": self.tokens}, "/detokenize": {"text": TOKENIZED}}[path]


def refusal(status, kind=RuntimeRefused):
    error = kind(f"{status}")
    error.status = status
    return error


def watched(role="draft", known=None):
    runtime, heard = Runtime(), []
    return runtime, Watch(role, runtime, known, lambda role, why: heard.append(why)), heard


def polls(watch, times=1):
    async def scene():
        for _ in range(times):
            await watch.poll()

    run_virtually(scene())


def test_a_runtime_that_cannot_be_reached_is_down_at_once_and_comes_back():
    runtime, watch, heard = watched()
    polls(watch)
    assert not watch.down
    runtime.fails = RuntimeDown("nobody there")
    polls(watch, 2)
    assert watch.down and heard == ["nobody there"] and watch.total() > 0
    with pytest.raises(RuntimeAway) as away:
        asyncio.run(watch.generate({}, Request(), 600))
    assert not away.value.retryable and away.value.role == "draft"
    runtime.fails = None
    polls(watch)
    assert not watch.down and heard == ["nobody there", ""]
    assert watch.total() == watch.total() > 0
    assert asyncio.run(watch.generate({}, Request(), 600))
    assert set(runtime.asked) == {"/model_info"}, "/health would generate"


@pytest.mark.parametrize(
    ("answer", "down"),
    [
        (BadReply("no JSON"), False),
        (refusal(404), False),
        (refusal(500), True),
        (refusal(503, RuntimeBusy), True),
    ],
    ids=repr,
)
def test_whoever_answers_is_not_down(answer, down):
    """A router has no such route; it says 503 where it has no workers."""
    runtime, watch, _ = watched()
    runtime.fails = answer
    polls(watch)
    assert bool(watch.down) == down


@pytest.mark.parametrize("role", ROLES)
@run_by(run_virtually)
async def test_the_log_says_once_that_it_is_degraded_for_a_minute(role, monkeypatch):
    """Of a draft or a judge; without a target, nothing is answered."""
    said = []
    monkeypatch.setattr(health, "log", lambda event, level, **about: said.append((event, about)))
    runtime, watch, _ = watched(role)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=loop.time))
    watching = asyncio.create_task(watch.run())
    for _ in range(2):
        runtime.fails = RuntimeDown("nobody there")
        await asyncio.sleep(health.DEGRADED_SECONDS - 1)
        assert not said
        await asyncio.sleep(100)
        about = {"role": role, "seconds": 60, "reason": "nobody there"}
        assert said == ([] if role == "target" else [("degraded", about)])
        runtime.fails = None
        await asyncio.sleep(2 * POLL_SECONDS)
        said.clear()
    watching.cancel()


def test_a_runtime_that_comes_back_with_another_models_tokens_stays_down():
    tokenizer = CharTokenizer()
    runtime, watch, heard = watched("target", tokenizer)
    runtime.fails = RuntimeDown("nobody there")
    polls(watch)
    runtime.fails, runtime.tokens = None, list(range(40, 90))
    polls(watch, 3)
    assert heard == ["nobody there", watch.down]
    assert watch.down.startswith("it has another tokenizer")
    runtime.tokens = list(tokenizer.encode(TOKENIZED))
    polls(watch)
    assert not watch.down


def test_the_health_of_all_roles():
    backends = {
        role: SimpleNamespace(transport=Runtime(), tokenizer=None, timeout=600.0) for role in ROLES
    }
    backends["judge"].checks = SimpleNamespace(worst=lambda: None)
    health = Health(backends, Service(stall=7.0))
    timeouts = [backends[role].timeout for role in ("target", "draft", "judge")]
    assert timeouts == pytest.approx([600.0, 7.0, 7.0 / PATIENCE])
    watches, began = health.watches, time.monotonic()
    for role, state in (("judge", "degraded"), ("target", "down")):
        watches[role].inner.fails = RuntimeDown("http://10.1.2.3:4 is away")
        polls(watches[role])
        assert health.state == state and health.disturbed(began)
        assert health.report()[role]["status"] == "down"
        assert "10.1.2.3" not in health.report()[role]["reason"]
    assert "no verdicts" in watches["draft"].useless and not watches["draft"].down
    for watch in watches.values():
        watch.inner.fails = None
        polls(watch)
    assert health.state == "ready" and not watches["draft"].useless
