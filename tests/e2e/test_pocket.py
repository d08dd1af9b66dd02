"""Lookahead reasoning on three real SGLang servers."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lr_sglang as lr
from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest, Constraints
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling
from lr_sglang.errors import Cancelled
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import launch
from lr_sglang.runtimes.connect import connected
from lr_sglang.steps.step import Verdict
from lr_sglang.steps.trace import Trace
from lr_sglang.user_programs import program_registry
from tests import FULL, ROOT, SCHEDULES, in_thread, plan
from tests.e2e.conftest import Pocket, answer, ask, assert_complete, assert_idle
from tools.pocket.meaning import meaning

PROBLEMS = tasks.load("pocket", limit=50 if FULL else 6)


def answers(pocket: Pocket, *how: Any) -> list[Trace]:
    """Of all problems, some at a time: these share the servers' passes."""
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda question: answer(pocket, question, *how), PROBLEMS))


@pytest.mark.timeout(600)
def test_an_end_that_is_the_last_token_of_a_step_ends_the_answer(pocket: Pocket) -> None:
    """SGLang 0.5.16 reports it as ``length``."""
    plain = answer(pocket, PROBLEMS[0], None, 0.0, "exact")
    last = plain.steps[-1].tokens
    for most in {last, -(-last // 2), -(-last // 3)}:
        ahead = answer(pocket, PROBLEMS[0], "async", 0.0, "exact", 3, most)
        assert (ahead.ids, ahead.text, ahead.finish) == (plain.ids, plain.text, "stop")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", SCHEDULES if FULL else SCHEDULES[:1])
def test_the_judge_accepts_other_words_for_the_same(pocket: Pocket, schedule: str) -> None:
    traces = answers(pocket, schedule, 0.6, "judge")
    for trace in traces:
        assert_complete(trace)
        assert not trace.failures
    kept = [s for t in traces for s in t.steps if s.source == "draft"]
    assert any(s.text != s.target_text for s in kept), "no step was accepted by its meaning alone"
    assert_idle(pocket.roles)


def test_the_target_finds_its_prefixes_in_the_cache(pocket: Pocket) -> None:
    """On the pocket task, and after a prompt of 1,000 tokens (async: a branch's sibling was
    prefilled before).
    """
    long = " ".join(q.question for q in tasks.load("pocket", limit=40))
    ids = pocket.roles["target"].tokenizer.encode(long)[:1000]
    text = pocket.roles["target"].tokenizer.decode(ids)
    questions = [*(PROBLEMS if FULL else PROBLEMS[:3]), tasks.Question("long", text, None)]
    for question in questions:
        trace = answer(pocket, question, "async", 0.6, "judge")
        tokens = trace.tokens()["target"]
        assert tokens["shareable"] > 0
        assert tokens["reuse"] >= 0.98, question.id
        # what a branch had to compute is at most the last drafted step, where its sibling was
        # prefilled before; on a busy machine two may go together, and then it had to compute what
        # nobody had before
        for branch in trace.of("target")[1:]:
            if branch.cached_tokens is not None and branch.shared_tokens is not None:
                missed = branch.prompt_tokens - branch.cached_tokens
                assert missed <= max(101, branch.prompt_tokens - branch.shared_tokens), branch
        if question.id == "long":
            assert trace.prompt_tokens >= 1000
            assert (
                max(branch.cached_tokens or 0 for branch in trace.of("target"))
                >= trace.prompt_tokens - 1
            )


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch_of_eight(pocket: Pocket) -> None:
    def sampled(sample: int) -> tuple[int, ...]:
        hot = Sampling(temperature=1.0)
        trace = ask(pocket, PROBLEMS[0], Lookahead(), hot, 40, plain=True, sample=sample)
        assert trace.seeded
        return trace.ids

    alone = [sampled(n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(sampled, range(8)))
    assert alone == together
    assert len(set(alone)) > 1


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 30])
def test_after_a_cancel_the_runtimes_are_idle(pocket: Pocket, milliseconds: int) -> None:
    request = AnswerRequest(
        Lookahead(),
        Sampling(),
        Limits(max_tokens=3500),
        verifier=verifiers.make_verifier("judge", verifiers.Setup(pocket.roles, "pocket")),
        question="cancelled",
        constraints=Constraints(ignore_eos=True),
    )
    message = {"role": "user", "content": PROBLEMS[0].question}
    thread, found = in_thread(
        lambda: lookahead.run([message], request, backend=pocket.roles["target"])
    )
    time.sleep(milliseconds / 1000)
    request.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert [type(error) for error in found] == [Cancelled] and "stopped" in str(found[0])
    assert_idle(pocket.roles)
    assert all(b.outcome is not None for b in request.trace.branches)


# -- verifiers that ask the target


FEW = tasks.load("pocket", limit=20 if FULL else 3)


def verified(pocket: Pocket, question: tasks.Question, look: Lookahead) -> Trace:
    trace = ask(pocket, question, look, Sampling(temperature=0.6))
    assert_complete(trace)
    assert not trace.failures
    return trace


def verdicts(trace: Trace, by: str) -> list[Verdict]:
    return [v for step in trace.steps for v in step.verdicts if v is not None and v.by == by]


@pytest.mark.parametrize("how", ["mean", "min"] if FULL else ["mean"])
def test_the_likelihood_of_a_step_costs_its_prefill_and_generates_nothing(
    pocket: Pocket, how: str
) -> None:
    traces = [
        verified(pocket, q, Lookahead("sync", depth=3, verifier=f"likelihood:{how}")) for q in FEW
    ]
    given = [v for trace in traces for v in verdicts(trace, "likelihood")]
    assert any(v.accepted for v in given)
    assert all(v.score is not None and v.score <= 0 for v in given)
    for trace in traces:
        asked = trace.of("judge")
        assert sum(b.generated_tokens for b in asked) == 0
        for branch in asked:
            if branch.cached_tokens is not None and branch.ended is not None:
                # all but the step itself (and the token before it) is in the cache
                assert branch.prompt_tokens - branch.cached_tokens <= 101, branch
        assert (trace.tokens()["judge"]["reuse"] or 1.0) >= 0.98
    assert_idle(pocket.roles)


def test_what_the_target_writes_greedily_is_likelier_than_another_result(pocket: Pocket) -> None:
    """The least likely token tells a wrong figure from another wording."""
    found = []
    for question in FEW:
        look = Lookahead("sync", depth=2, verifier="cascade:likelihood:min,judge")
        for step in verified(pocket, question, look).steps:
            for text, verdict in zip(step.draft_texts, step.verdicts, strict=True):
                if verdict is not None and verdict.earlier and text and step.target_text:
                    found.append(
                        (verdict.earlier[0].score, meaning(text) == meaning(step.target_text))
                    )
    likely = [same for score, same in found if score is not None and score >= -3]
    assert len(likely) >= 3
    assert sum(likely) / len(likely) >= 0.9


# -- the gallery


# Smaller than their defaults: real models on a CPU.
OPTIONS = {
    "self_consistency": ":samples=3",
    "best_of_n": ":samples=2",
    "plan_then_solve": ":plan_tokens=100",
    "budget_forcing": ":most=300",
    "early_exit": ":every=16,agree=2",
}
# Of those the pocket models know the prompt; they were never taught to plan or to wait.
KNOWN = (
    "lookahead",
    "autoregressive",
    "self_consistency",
    "best_of_n",
    "conf_spec",
    "early_exit",
    "glimp_router",
    "rsd",
    "spec_cot",
    "specreason",
)


@pytest.mark.parametrize("name", program_registry.PROGRAM_NAMES)
def test_the_gallery(pocket: Pocket, name: str) -> None:
    questions = tasks.load("pocket", 10 if FULL else 1)
    given = Plan(program=name + OPTIONS.get(name, "")).with_settings(
        lookahead=lr.Lookahead(depth=4), limits=lr.Limits(max_tokens=300), judge_prompt="pocket"
    )
    records = list(Runner(pocket.roles, given, 2).run(plan(questions, ("lookahead",))))
    for record in records:
        assert record["error"] is None and record["text"].strip() and record["steps"]
        assert (
            record["tokens"]["used"] + record["tokens"]["wasted"] == record["tokens"]["generated"]
        )
        assert record["program"]["generations"] or name in ("lookahead", "autoregressive")
    if name in KNOWN:
        assert sum(record["answer"] is not None for record in records) > len(records) / 2


def reward_model(folder: Path) -> Path:
    """The pocket judge with a head of random weights, which gives one score."""
    shutil.copytree(ROOT / "lr_sglang/pocket/weights/judge", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"architectures": ["Qwen3ForSequenceClassification"]}
    config |= {"num_labels": 1, "id2label": {"0": "score"}, "label2id": {"score": 0}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    head = {"score.weight": torch.randn(1, config["hidden_size"]), "score.bias": torch.zeros(1)}
    save_file(weights | head, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_rsd_asks_a_reward_model_in_the_judges_place(pocket: Pocket, tmp_path: Path) -> None:
    judge = Runtime(model=str(reward_model(tmp_path / "reward")), extra={"is-embedding": True})
    runtimes = {role: Runtime(url=pocket.fleet.urls[role]) for role in ("target", "draft")}
    deployment = Deployment("reward", {**runtimes, "judge": judge})
    with launch(deployment, tmp_path / "logs", timeout=280) as fleet, connected(fleet) as roles:
        for threshold, source in ((-1000, "draft"), (1000, "target")):
            given = Plan(program=f"rsd:by=judge,threshold={threshold}").with_settings(
                lookahead=Lookahead(verifier="exact"), limits=Limits(max_tokens=300)
            )
            (record,) = Runner(roles, given).run(plan(PROBLEMS[:1], ("lookahead",)))
            assert record["error"] is None and not record["failures"]
            assert {step["source"] for step in record["steps"]} == {source}
