"""SGLang's own speculative decoding in target and draft: the same tokens, fewer forward passes,
nothing left running.

Speculation is set when a server starts: one with a token layer is started here, beside those that
the session shares.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lr_sglang import tasks
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import (
    ROLES,
    Deployment,
    Limits,
    Lookahead,
    Runtime,
    Sampling,
    Schedule,
    TokenLayer,
)
from lr_sglang.engine.loop import call
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.results.record import Record
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.connect import deployed
from lr_sglang.sglang_api.plugin_protocol import WRITTEN_FIELD, with_seed
from lr_sglang.steps.branch import Request
from lr_sglang.steps.trace import acceptance
from lr_sglang.tasks.question import Work
from tests import FULL, ROOT, in_thread, plan, records
from tests.e2e.conftest import Pocket, assert_idle

PROBLEMS = tasks.load("pocket", limit=20)
LOOK, LIMITS = Lookahead(depth=4), Limits(max_tokens=300)
STANDALONE = TokenLayer("standalone", draft_model="pocket:draft", tokens=3)
CHAIN = TokenLayer("ngram", tokens=5, ngram_max=2, topk=1)
# a head of random weights: nothing that it drafts is right
HEAD = TokenLayer("eagle3", draft_model="dummy:pocket-target-eagle3", steps=2, topk=2, tokens=4)
LAYERS: dict[str, dict[str, TokenLayer]] = {
    "none": {},
    "ngram": {"target": TokenLayer("ngram"), "draft": CHAIN},
    "eagle3": {"target": HEAD},
    "standalone": {"target": STANDALONE},
    "tree": {"target": STANDALONE.replace(steps=3, topk=2, tokens=6)},
    # one step when nothing is right
    "adaptive": {"target": HEAD.replace(steps=3, topk=1, tokens=3)},
    # more of its drafts are right, and all else is as with "standalone"
    "itself": {"target": STANDALONE.replace(draft_model="pocket:target")},
}
# In a short run test_launched.py says that the embedded default, a chain, draws the target's own tokens, and
# test_fed.py that n-grams and lines do.
of_each = pytest.mark.skipif(not FULL, reason="servers with each token layer: only in test-full")
SAMPLED = Sampling(temperature=0.6, seed=3)


@dataclass
class Layered:
    """A deployment with a token layer, up and running."""

    name: str
    roles: dict[str, RuntimeBackend]

    def answers(
        self, mode: str, sampling: Sampling, look: Lookahead = LOOK, concurrency: int = 1
    ) -> dict[str, Record]:
        """A record for every problem."""
        settings = Plan().with_settings(lookahead=look, sampling=sampling, limits=LIMITS)
        runner = Runner(self.roles, settings, concurrency)
        return {r["question_id"]: r for r in runner.run(plan(PROBLEMS, [mode]))}

    @property
    def plain_mode(self) -> str:
        return "sd" if LAYERS[self.name] else "autoregressive"

    @cached_property
    def greedy(self) -> dict[str, Record]:
        return self.answers(self.plain_mode, Sampling(temperature=0.0))

    @cached_property
    def sampled(self) -> dict[str, Record]:
        return self.answers(self.plain_mode, SAMPLED)

    @cached_property
    def verified(self) -> dict[str, Any]:
        sds = [r["tokens"]["target"]["sd"] for r in self.greedy.values()]
        return acceptance([sd[name] for name in ("verified", "drafted", "accepted")] for sd in sds)


def deployment(name: str, shared: Mapping[str, str]) -> Deployment:
    """Pocket, with the session's servers for the roles without a token layer."""
    pocket, runtimes = load_deployment("pocket"), {}
    for role in ROLES:
        runtimes[role] = Runtime(url=shared[role])
        if layer := LAYERS[name].get(role):
            runtimes[role] = pocket.runtimes[role].replace(
                token_layer=layer, max_running_requests=40
            )
    if name == "adaptive":
        runtimes["target"] = runtimes["target"].replace(extra={"speculative-adaptive": True})
    return pocket.replace(runtimes=runtimes)


Start = Callable[[str], AbstractContextManager[Layered]]


@pytest.fixture(scope="module")
def start(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts the servers of a set."""

    @contextmanager
    def started(name: str) -> Iterator[Layered]:
        plan = deployment(name, pocket.fleet.urls)
        with deployed(plan, tmp_path_factory.mktemp("logs"), timeout=280) as roles:
            yield Layered(name, roles)

    return started


@pytest.fixture(scope="module", params=LAYERS)
def layered(request: pytest.FixtureRequest, start: Start, without: Layered) -> Iterator[Layered]:
    if request.param == without.name:
        yield without
        return
    with start(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def without(pocket: Pocket) -> Layered:
    """The session's servers, which have no token layer."""
    return Layered("none", pocket.roles)


@pytest.fixture(scope="module")
def missed() -> dict[str, float]:
    """By set, the share of what was drafted that was not accepted."""
    return {}


def digests(records: dict[str, Record]) -> dict[str, tuple[str, str]]:
    assert all(r["error"] is None for r in records.values())
    return {question: (r["ids_digest"], r["text"]) for question, r in records.items()}


@of_each
@pytest.mark.timeout(900)
def test_greedy_output_is_the_same_token_for_token(layered: Layered, without: Layered) -> None:
    assert digests(layered.greedy) == digests(without.greedy)
    assert sum(r["finish"] == "stop" for r in layered.greedy.values()) == len(PROBLEMS)


@of_each
@pytest.mark.timeout(900)
def test_a_seed_draws_the_same_tokens_with_and_without(layered: Layered, without: Layered) -> None:
    assert all(r["seeded"] for r in layered.sampled.values())
    assert digests(layered.sampled) == digests(without.sampled) != digests(without.greedy)


@of_each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_lossless_lookahead_is_the_targets_own_too(
    layered: Layered, without: Layered, schedule: Schedule
) -> None:
    look = LOOK.replace(schedule=schedule, verifier="exact")
    modes = ["lossless"] if layered.name == "none" else ["lossless", "lookahead+sd"]
    for known, sampling in (
        (without.greedy, Sampling(temperature=0.0)),
        (without.sampled, SAMPLED),
    ):
        for mode in modes:
            records = layered.answers(mode, sampling, look)
            assert digests(records) == digests(known), (sampling, mode)
            alone = layered.name != "none" and mode == "lossless"
            assert all(bool(r["alone"]) == alone for r in records.values())
    assert sum(r["judged"] for r in records.values()) > 0
    # few drafts have the very words of the target, two in six problems
    assert sum(r["accepted"] for r in records.values()) > 0


@of_each
def test_penalties_of_an_answer_in_two_requests_are_those_of_one(layered: Layered) -> None:
    target = layered.roles["target"]
    prompt, whole = list(target.tokenizer.encode(PROBLEMS[0].question)), 40
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1}
    sampled = {"temperature": 0.6, "ignore_eos": True, **penalties}

    def written(before: list[int]) -> list[int]:
        params = {
            **sampled,
            "max_new_tokens": whole - len(before),
            "custom_params": {WRITTEN_FIELD: len(before)},
        }
        seeded = with_seed(params, 5, len(before))
        payload = {"input_ids": [*prompt, *before], "sampling_params": seeded}
        ids = call(target.transport.generate(payload, Request(), 60), target.loop)["output_ids"]
        return before + list(ids)[: whole - len(before)]

    answer = written([])
    assert [written(answer[:n]) for n in (1, 10, 30)] == [answer] * 3


@of_each
@pytest.mark.timeout(900)
def test_several_tokens_come_of_a_forward_pass(
    layered: Layered, missed: dict[str, float], start: Start
) -> None:
    total = layered.verified
    used = sum(r["tokens"]["used"] for r in layered.greedy.values())
    if layered.name == "none":
        assert not total["verified"]
        return
    assert total["length"] is not None and total["rate"] is not None
    # every token came of a verification, but the first of an answer, which the prefill gave
    assert total["verified"] + total["accepted"] >= used - len(PROBLEMS)
    missed[layered.name] = 1 - total["rate"]
    if layered.name == "itself":
        if "standalone" not in missed:
            with start("standalone") as other:
                missed["standalone"] = 1 - other.verified["rate"]
        assert missed["itself"] < 0.7 * missed["standalone"]
    else:
        assert total["length"] > {"ngram": 1.05, "eagle3": 0.99, "adaptive": 0.99}.get(
            layered.name, 1.5
        )
    if layered.name == "adaptive":
        target = layered.roles["target"]
        (now,) = call(target.transport.get("/server_info"), target.loop)["internal_states"]
        assert now["speculative_num_steps"] == 1  # of 3: none of its drafts was right


@of_each
def test_eight_at_once_with_some_cancelled_leave_nothing_behind(
    layered: Layered, without: Layered
) -> None:
    """Those that go on write what they write alone; nothing runs on a server afterwards."""
    settings = Plan().with_settings(lookahead=LOOK, sampling=SAMPLED, limits=LIMITS)
    modes = ["lossless"] if layered.name == "none" else ["lossless", "sd"]
    go_on, stopped = (
        [Work(q, sample, m) for q in PROBLEMS[:4] for m in modes] for sample in (0, 1)
    )

    def first_of(work: list[Work]) -> None:
        with closing(Runner(layered.roles, settings, concurrency=4).run(work)) as made:
            next(made)

    thread, raised = in_thread(lambda: first_of(stopped))
    known = digests(without.sampled)
    for record in Runner(layered.roles, settings, concurrency=4).run(go_on):
        assert record["error"] is None
        assert record["ids_digest"] == known[record["question_id"]][0], record["mode"]
    thread.join()
    assert not raised
    assert_idle(layered.roles)


def test_no_log_names_a_missing_operator(
    pocket: Pocket, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of servers that have been started so far."""
    logs = [
        path.read_text(errors="replace")
        for path in Path(tmp_path_factory.getbasetemp()).glob("logs*/*.log")
    ]
    assert logs and not any("has no CPU version in lr-sglang" in text for text in logs)


@pytest.mark.skipif(not FULL, reason="two sets of servers: only in test-full")
@pytest.mark.timeout(600)
def test_the_four_modes_side_by_side_on_the_embedded_default(tmp_path: Path) -> None:
    """As a user calls it: two targets, one after the other, and a table of both layers."""
    modes = [
        word
        for name in ("autoregressive", "sd", "lookahead", "lookahead+sd")
        for word in ("--mode", name)
    ]
    command = [sys.executable, ROOT / "cli.py", "run", "--task", "pocket", "--limit", "8", *modes]
    done = subprocess.run(
        [*command, "--output", tmp_path / "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = records(tmp_path / "out")
    assert len(made) == 32
    assert all(r["error"] is None and r["finish"] == "stop" for r in made)
    plain, sd = (
        {r["question_id"]: r["ids_digest"] for r in made if r["mode"] == m}
        for m in ("autoregressive", "sd")
    )
    assert plain == sd and all(r["seeded"] for r in made), (
        "the same seeds draw the same tokens in both layers"
    )
    for record in made:
        layered = record["mode"] in ("sd", "lookahead+sd")
        layer = record["tokens"]["target"]["sd"]
        if not layered:
            assert layer["verified"] == 0
        elif not record.get("read_tokens"):  # what is read is not written by the token layer
            assert (layer["length"] or 1.0) > 1.5
        set_up = record["config"]["runtimes"]["target"]["token_layer"]
        assert set_up["algorithm"] == ("standalone" if layered else "none")
    said = " ".join(done.stdout.split())
    for legend in ("speed-ups on the", "alpha: accepted of the judged", "SD length: tokens of a"):
        assert legend in said
