"""What answers say of their tokens and of speculation, and whether others' clients read it."""

import json
import subprocess

import pytest
from openai.types import CompletionUsage

from lr_sglang.serve.replies import of_steps, of_tokens
from lr_sglang.steps.step import Verdict
from lr_sglang.steps.trace import StepRecord, Trace
from tests import fixture_of
from tests.commands import clients
from tests.endpoint import scripted, serving, simulated

# What AIPerf makes of replies: in its own words, whatever it reads of usage and of speculation.
READER = """
import json, sys
from aiperf.common.models import Usage
from aiperf.common.models.record_models import TextResponse
from aiperf.endpoints.openai_chat import ChatEndpoint
from aiperf.spec_decode import VLLMSpecDecodeAdapter as Adapter

read = ChatEndpoint(model_endpoint=None).parse_response
parsed = [read(TextResponse(perf_ns=0, text=line)) for line in sys.stdin]
parsed = [one for one in parsed if one is not None]
stats = [one for one in parsed if one.spec_decode_stats]
record = Adapter.adapt(parsed) if stats and Adapter.can_adapt(parsed) else None
usage = Usage(next(one.usage for one in reversed(parsed) if one.usage))
print(json.dumps({
    "record": record and record.model_dump(exclude_none=True),
    "payloads": len(stats),
    "tokens": [usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens],
    "cached": usage.prompt_cache_read_tokens,
}))
"""
MODES = ("lookahead", "autoregressive", "lossless")


def with_layer():
    """Scripted runtimes, of which the target says that it has a token layer."""
    roles = scripted(["First a step.", "Then another.", "The end."])
    roles["target"].transport.token_layer = "NGRAM"
    return roles


layered = fixture_of(lambda: serving(with_layer()))
quick = fixture_of(lambda: serving(simulated(steps=4, seconds=0.01)))


def read_by_aiperf(replies):
    lines = "\n".join(map(json.dumps, replies))
    command = [str(clients() / "python"), "-c", READER]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_load_generator_reads_the_acceptance_and_the_usage(layered, stream):
    replies = layered.chunks(stream)
    said, last = read_by_aiperf(replies), replies[-1]
    told, usage = last["metrics"]["speculative_decoding"], last["usage"]
    assert said["payloads"] == 1, "in one place of a stream"
    record = said["record"]
    assert record["num_spec_steps"] == told["num_spec_steps"] > 0
    assert record["num_accepted_draft_tokens"] == told["num_accepted_draft_tokens"]
    assert record["num_spec_tokens"] == 8 and record["mean_acceptance_length"] == 2.0
    assert record["draft_acceptance_rate"] == 1 / 8
    assert record["completion_tokens"] == usage["completion_tokens"]
    assert said["tokens"] == [usage["prompt_tokens"], usage["completion_tokens"], 0]
    assert said["cached"] == usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_usage_has_openais_details(quick, mode, stream):
    usage = quick.chunks(stream, lookahead={"mode": mode})[-1]["usage"]
    read = CompletionUsage.model_validate(usage)
    assert read.completion_tokens_details.reasoning_tokens == 0
    assert read.total_tokens == read.prompt_tokens + read.completion_tokens
    assert read.prompt_tokens_details.cached_tokens is None, "these do not say"


def test_a_prompt_that_was_asked_before_is_cached(layered):
    asked = [{"role": "user", "content": "What was never asked before?"}]
    first, second = (
        layered.ask(messages=asked, lookahead={"mode": "autoregressive"}).json()["usage"]
        for _ in range(2)
    )
    cached = [one["prompt_tokens_details"]["cached_tokens"] for one in (first, second)]
    assert cached[0] < cached[1] == first["prompt_tokens"] - 1


@pytest.mark.parametrize("mode", MODES)
def test_the_acceptance_of_steps_adds_up(quick, mode):
    answer = quick.ask(lookahead={"mode": mode}).json()
    steps, about = answer["metrics"]["lookahead"], answer["lookahead"]
    assert answer["metrics"]["speculative_decoding"] is None, "these have no token layer"
    if mode == "autoregressive":
        assert steps is None
        return
    counts = steps["acceptance_histogram"]
    accepted = sum(number * times for number, times in enumerate(counts))
    assert steps["num_accepted_draft_steps"] == accepted and steps["num_cycles"] == sum(counts)
    assert steps["draft_acceptance_rate"] == pytest.approx(about["alpha"])
    assert steps["mean_acceptance_length"] == pytest.approx(1 + accepted / sum(counts))
    assert steps["num_steps"] == about["steps"] >= steps["num_draft_steps"] >= accepted


def test_steps_of_an_exact_conclusion_are_not_verified_ones():
    def step(source: str, after_thinking: bool) -> StepRecord:
        verdicts = (Verdict(source == "draft", "a test"),)
        about = ("text", 3, source, "accepted", "delimiter", 1.0)
        return StepRecord(0, *about, verdicts=verdicts, after_thinking=after_thinking)

    steps = [step("draft", False), step("target", False)]
    trace = Trace(steps=[*steps, step("draft", True), step("draft", True)])
    found = of_steps(trace)
    assert found == of_steps(Trace(steps=steps)) | {"num_steps": 4}
    assert found["acceptance_histogram"] == [0, 1] and found["num_accepted_draft_steps"] == 1
    assert trace.judged_tokens == 3


def test_several_answers_have_no_metrics_of_one(quick):
    assert quick.ask(n=2).json()["metrics"] is None


def test_what_is_read_counts_as_verified():
    """In an exact answer the draft's tokens are verified by reading them."""
    trace = Trace()
    trace.reads.update({(8, 3): 2, (5, 5): 1})
    assert of_tokens(trace) == {
        "mean_acceptance_length": 1 + 11 / 3,
        "draft_acceptance_rate": 11 / 21,
        "acceptance_histogram": [0, 0, 0, 2, 0, 1, 0, 0, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 11,
        "num_draft_tokens": 21,
        "num_spec_tokens": 8,
    }
