"""Exact answers by reading, over runtimes with probabilities: the text is plain decoding's."""

import asyncio
import collections
import gc
import itertools
import json
import math
import random
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lr_sglang.algorithm import reader
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.policy import Policy, RunStatistics, adaptive, read_statistics
from lr_sglang.algorithm.policy import experience as experience_of_runs
from lr_sglang.algorithm.policy.forecast import TreeShape
from lr_sglang.algorithm.policy.read_statistics import ReadStatistics
from lr_sglang.algorithm.reader import target_draws, uniform_of_ids
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.prefix_reuse import RequestLog
from lr_sglang.frontend.dsl import run_program
from lr_sglang.plugin import seeds
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.results.record import make_record
from lr_sglang.sglang_api.plugin_protocol import place_of
from lr_sglang.tasks import Question
from lr_sglang.theory.reading import TYPICAL_TIMES
from lr_sglang.verifiers.exact import Exact
from tests import examples
from tests.accounts import accounts
from tests.dice import LETTERS, Dice
from tests.scripted import CONVERSATION, END, Agreeing, Same, answered, deployment, set_facts
from tests.simulated.clock import run_virtually


def write(program: Any, target: Dice, draft: Dice | None, sampling: Sampling, **more: Any) -> Any:
    look = Lookahead(
        schedule=more.pop("schedule", "async"),
        reading=more.pop("reading", "auto"),
        shared_draws=more.pop("shared_draws", True),
        policy=more.pop("policy", "fixed"),
        max_step_tokens=20,
    )
    tokens = Limits(max_tokens=more.pop("max_tokens", 120))
    backend = deployment(target=target, **({"draft": draft} if draft else {}))
    backend.readable, seeded = more.pop("readable", None), more.pop("seeded", True)
    set_facts(*backend.roles.values(), seeded=seeded)
    more.setdefault("verifier", Exact() if draft else None)
    return answered(backend, AnswerRequest(look, sampling, tokens, **more), program)


SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=0.6, top_p=0.95),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=0.8, top_k=5, top_p=1.0, min_p=0.05),
    Sampling(temperature=1.0, top_p=1.0),  # no filter: nothing can be read
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_the_text_is_the_one_of_plain_decoding(sampling, schedule, monkeypatch):
    rng = random.Random(repr((sampling, schedule)))
    for number in range(examples(6)):
        monkeypatch.setattr(reader, "MOST_READ", rng.choice([4, 12, 48]))
        given = sampling.replace(seed=number)
        most = rng.choice([1, 2, 7, 8, 9, 13, 30, 120])
        noise = rng.choice([0.0, 0.3, 2.0])
        plain = write(autoregressive, Dice(number), None, given, max_tokens=most)
        read = write(
            lookahead, Dice(number), Dice(number, noise), given, max_tokens=most, schedule=schedule
        )
        assert (read.ids, read.text, read.finish) == (plain.ids, plain.text, plain.finish)
        if read.read_tokens:  # elsewhere long steps are cut
            assert [one.text for one in read.steps] == [one.text for one in plain.steps]
        assert read.lossless == "text" and all(b.outcome is not None for b in read.branches)
        assert all(b.result is None for b in read.branches)
        used = read.tokens()
        assert used["generated"] == used["used"] + used["wasted"] and used["wasted"] >= 0


# Accepts what begins as the target's version, whatever follows.
def same_start(target, draft):
    return target[:2] == draft[:2]


Lenient = partial(Agreeing, same_start)


@pytest.mark.parametrize("verifier", [Exact, Lenient], ids=["Exact", "Lenient"])
def test_without_seeds_the_distribution_is_the_targets(verifier):
    """Where the target's server honours no seeds, its draws are made with the answer's own numbers:
    each text of two tokens comes as often as its probability says.
    """
    target, draft, found = Dice(5), Dice(5, 0.3), collections.Counter[Any]()
    answers = examples(300)
    for seed in range(answers):
        sampling = Sampling(temperature=1.0, top_k=3, top_p=1.0, seed=seed)
        more = {"readable": True, "reading": "first", "verifier": verifier()}
        one = write(lookahead, target, draft, sampling, max_tokens=2, seeded=False, **more)
        assert one.lossless == ("distribution" if verifier is Exact else "")
        assert one.read_tokens > 0 and one.own_draws
        found[one.steps[0].target_text] += 1
    prompt = target.requests[0]["input_ids"][: one.prompt_tokens]
    expected = {
        chr(first) + chr(second): share * after
        for first, share in three(target, prompt)
        for second, after in three(target, [*prompt, first])
    }
    assert len(expected) == 9 and set(found) <= set(expected)
    seen, wanted = zip(*((found[text], answers * p) for text, p in expected.items()), strict=True)
    assert scipy.stats.chisquare(seen, wanted).pvalue > 0.001


def three(model: Dice, ids: Any) -> list[tuple[int, float]]:
    """The three most probable next tokens, with their share of the probability."""
    share, at = model.probabilities(ids, 1.0)[0].double().topk(3)
    return [(int(n), float(one)) for n, one in zip(at, share / share.sum(), strict=True)]


@pytest.mark.parametrize("sampling", SAMPLINGS[:4], ids=str)
@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_judged_steps_are_the_same_read_or_written(sampling, schedule):
    """What the target says of a drafted step is the version that it would have written."""
    rng = random.Random(repr((sampling, schedule)))
    for number in range(examples(6)):
        given = sampling.replace(seed=number)
        most, noise = rng.choice([9, 30, 120]), rng.choice([0.0, 0.3, 2.0])
        models = Dice(number), Dice(number, noise)
        more = {"max_tokens": most, "verifier": Lenient()}
        read = write(lookahead, *models, given, schedule=schedule, reading="first", **more)
        # in sync no draft is late, which would be refused
        written = write(lookahead, *models, given, schedule="sync", reading="never", **more)
        assert (read.ids, read.text, read.finish) == (written.ids, written.text, written.finish)
        told = [[step.target_text for step in one.steps] for one in (read, written)]
        assert told[0] == told[1]
        assert read.read_tokens > 0 and all(b.outcome is not None for b in read.branches)


def test_an_equal_draft_is_read_and_hardly_anything_written():
    target = Dice(3)
    record = write(lookahead, target, Dice(3), Sampling(temperature=0.6), max_tokens=100)
    assert record.agreed_tokens == record.read_tokens > 50
    assert len(target.requests) < len(record.ids) / 4
    assert all(step.verdicts[0].by == "reading" for step in record.steps if step.verdicts)


@pytest.mark.parametrize("target", [{"wrong": True}, {"tells": False}], ids=str)
def test_a_target_that_cannot_be_read_is_found_out(target):
    sampling = Sampling(temperature=0.6, seed=5)
    plain = write(autoregressive, Dice(4), None, sampling)
    with pytest.warns(RuntimeWarning, match="are not read there"):
        record = write(lookahead, Dice(4, **target), Dice(4, 0.3), sampling)
    assert record.ids == plain.ids and record.read_tokens == 0


@pytest.mark.parametrize("fault", ["fails_after", "hangs_after"])
def test_a_draft_that_fails_or_hangs_is_done_without(fault, monkeypatch):
    monkeypatch.setattr(reader, "DRAFT_SECONDS", 0.2)
    sampling = Sampling(temperature=0.6, seed=5)
    plain = write(autoregressive, Dice(4), None, sampling)
    draft = Dice(4, 0.3)
    setattr(draft, fault, 3)
    record = write(lookahead, Dice(4), draft, sampling)
    assert record.ids == plain.ids and record.failures["draft"] >= 1 and record.read_tokens > 0
    draft = Dice(4, 0.3)
    setattr(draft, fault, 1)
    judged = write(lookahead, Dice(4), draft, sampling, verifier=Lenient(), reading="first")
    assert judged.ids and judged.failures["draft"] >= 1


@pytest.mark.parametrize("verifier", [Exact, Lenient])
def test_a_draft_that_hangs_costs_two_seconds_once(verifier):
    target, draft = Timed(1), Timed(1, 0.3)
    target.token, target.read, draft.hangs_after = 0.01, 0.01, 2
    backend = deployment(target=target, draft=draft)
    backend.readable, look = True, Lookahead(reading="first", max_step_tokens=20)
    request = AnswerRequest(look, Sampling(seed=2), Limits(max_tokens=150), verifier=verifier())
    record = answered(backend, request, virtually=True)
    assert record.failures["draft"] == 1 and len(record.ids) == 150
    assert reader.DRAFT_SECONDS < record.seconds < 4.5


def test_two_tokens_of_the_same_probability_decide_nothing():
    """The server may take either."""
    tie = [(-0.7, 5, None), (-0.7, 9, None)]
    assert target_draws([tie, [(-0.6, 5, None), tie[1]]], Sampling(temperature=0), 1, 0) == [
        None,
        5,
    ]


def test_a_draft_that_agrees_on_nothing_is_left_alone():
    sampling = Sampling(temperature=0.6, seed=5)
    plain = write(autoregressive, Dice(4), None, sampling, max_tokens=100)
    target = Dice(4)
    record = write(lookahead, target, Dice(11), sampling, max_tokens=100)
    assert record.ids == plain.ids and len(target.requests) < 30


@pytest.mark.parametrize(("agreement", "tokens"), [(0.6, 4), (0.8, 8), (0.92, 12), (0.99, 24)])
def test_pieces_are_as_long_as_the_agreement_pays_for(agreement, tokens):
    experience, rng = RunStatistics(), random.Random(1)
    assert experience.reads.portion_size(experience.read_times()) == 12
    for _ in range(300):
        same = min(20, int(math.log(rng.random(), agreement)))
        experience.reads.compared(same, same < 20)
    assert experience.reads.portion_size(experience.read_times()) == pytest.approx(tokens, rel=0.34)


def test_the_record_has_what_each_request_was_for_and_what_each_read_gave():
    request = AnswerRequest(
        Lookahead(max_step_tokens=20), Sampling(seed=3), Limits(max_tokens=90), Exact()
    )
    backend = deployment(target=Dice(3), draft=Dice(3, 0.3))
    backend.readable = True
    answered(backend, request)
    made = make_record(Question("q", "?"), "lossless", request, {}, {})
    told = json.loads(json.dumps(made))
    assert {one["purpose"] for one in told["branches"]} >= {"guess", "read"}
    assert sum(times for _, _, times in told["reads"]) > 3
    read = sum(min(tokens, same + 1) * times for tokens, same, times in told["reads"])
    assert read == told["read_tokens"] > told["agreed_tokens"] > 0


class Timed(Dice):
    """Takes ``token`` seconds for each token that it writes, and ``read`` for drafted ones."""

    token, read = 0.0, 0.0

    async def wait(self, payload: Any, tokens: int, stopped: asyncio.Event) -> bool:
        reads = payload.get("return_logprob") and payload["logprob_start_len"] >= 0
        try:
            async with asyncio.timeout(self.read if reads else self.token * tokens):
                await stopped.wait()
        except TimeoutError:
            pass
        return stopped.is_set()


def timed(
    look: Lookahead, sampling: Sampling, verifier: Any, noise: float, model: int = 1, **more: Any
) -> Any:
    """An answer on the virtual clock: a token of the target takes 1 s, a read 1.5 s, a token of the
    draft .13 s.
    """
    target, draft = Timed(model), Timed(model, noise)
    target.token, target.read, draft.token = 1.0, 1.5, 0.13
    backend = deployment(target=target, draft=draft)
    backend.readable = True
    request = AnswerRequest(look, sampling, Limits(max_tokens=200), verifier=verifier, **more)
    return answered(backend, request, virtually=True)


def begun(record: Any, purpose: str) -> int:
    return sum(one.purpose == purpose for one in record.branches)


def test_rests_of_steps_are_guessed_again_by_a_draft_that_has_become_better(monkeypatch):
    monkeypatch.setattr(read_statistics, "TRY_AGAIN", 4)
    known, look = RunStatistics(), Lookahead(reading="first", max_step_tokens=20)
    guesses = []
    for seed, noise in ((0, 20.0), (1, 20.0), (0, 0.3), (1, 0.3)):
        sampling = Sampling(temperature=0.6, seed=seed)
        made = timed(look, sampling, Lenient(), noise, experience=known)
        guesses.append(begun(made, "guess"))
    assert 0 < guesses[1] < guesses[3] / 2, "now and then, then again and again"


def test_short_answers_read_again_after_what_others_have_written_alone():
    known = RunStatistics()
    known.reads.lacking = read_statistics.MOST_LACKING
    reads = []
    for seed in range(3):
        sampling = Sampling(temperature=0.6, seed=seed)
        made = timed(Lookahead(max_step_tokens=20), sampling, Exact(), 0.3, experience=known)
        reads.append(begun(made, "read"))
    assert reads[:2] == [0, 0] and reads[2] > 0, "the first two have 278 tokens"


@settings(max_examples=examples(15), derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(
    st.builds(
        Lookahead,
        schedule=st.sampled_from(("async", "sync")),
        policy=st.sampled_from(("fixed", "adaptive")),
        reading=st.sampled_from(("auto", "first")),
        gate=st.sampled_from((0.0, 0.2)),
        max_step_tokens=st.just(20),
    ),
    st.sampled_from((Exact, Lenient)),
    st.integers(0, 99),
    st.sampled_from((0.0, 0.3, 2.0, 20.0)),
    st.sampled_from(((1.0, 1.5, 0.13), (0.1, 1.5, 0.3), (0.1, 0.1, 1.0))),
    st.sampled_from((math.inf, 3, 7)),
    st.integers(1, 3),
)
def test_what_begins_ends_once_at_its_own_time(
    look, verifier, seed, noise, seconds, fails_after, answers
):
    """Reads, pieces that are drafted ahead and those that are given up, versions that are written;
    one answer after another, and at once.
    """
    target, draft = Timed(seed), Timed(seed, noise)
    target.token, target.read, draft.token = seconds
    draft.fails_after = fails_after
    backend, experience = deployment(target=target, draft=draft), RunStatistics()
    backend.readable = True
    sampling, limits = Sampling(temperature=0.6, seed=seed), Limits(max_tokens=60)

    async def all_of_them():
        for at_once in (1, answers):
            requests = [
                AnswerRequest(
                    look, sampling, limits, verifier(), question=str(n), experience=experience
                )
                for n in range(at_once)
            ]
            await asyncio.gather(
                *(
                    run_program(lookahead, CONVERSATION, request, backend=backend)
                    for request in requests
                )
            )

    with accounts() as told:
        run_virtually(all_of_them())
    told.check()


class Endless(Timed):
    """Ends no answer, and keeps nothing of what it was asked."""

    def logits(self, ids: Any, wrong: bool = False) -> np.ndarray:
        made = super().logits(ids, wrong)
        made[LETTERS.index(END)] = -math.inf
        return made

    async def generate(self, payload: Any, request: Any, timeout: float) -> dict[str, Any]:
        reply = await super().generate(payload, request, timeout)
        self.requests.clear()
        return reply


@pytest.mark.parametrize(
    ("verifier", "look"),
    [
        (Exact, Lookahead(max_step_tokens=20)),
        (Exact, Lookahead(max_step_tokens=20, reading="never", depth=2)),
        (Same, Lookahead(max_step_tokens=20, reading="first")),
        (Same, Lookahead(max_step_tokens=20, policy="adaptive")),
    ],
    ids=["exact", "exact, written", "judged, read", "auto"],
)
def test_a_long_answer_keeps_its_record_and_nothing_else(verifier, look):
    """What it has after 160 tokens and after 480 differs by its steps and branches only."""
    target, draft = Endless(1), Endless(1, 0.3)
    target.token, target.read, draft.token = 1.0, 1.5, 0.13
    backend = deployment(target=target, draft=draft)
    backend.readable = look.reading != "never"
    for one in backend.roles.values():
        one.request_log = RequestLog(size=8)  # of the runtime, and bounded
    kept: list[collections.Counter[str]] = []
    bytes_at: list[tuple[int, int]] = []

    def on_step(step: Any) -> None:
        written = len(request.trace.ids)
        if written >= 160 * (2 * len(kept) + 1):
            gc.collect()
            bytes_at.append((written, tracemalloc.get_traced_memory()[0]))
            kinds = (type(one) for one in gc.get_objects())
            # where a library makes classes of its own, __module__ may be no text
            ours = (one for one in kinds if str(one.__module__).startswith(("lr_sglang", "sglang")))
            kept.append(collections.Counter(one.__qualname__ for one in ours))

    request = AnswerRequest(
        look,
        Sampling(temperature=0.6, seed=2),
        Limits(max_tokens=600),
        verifier(),
        on_step=on_step,
    )
    tracemalloc.start(1)
    try:
        answered(backend, request, virtually=True)
    finally:
        tracemalloc.stop()
    first, last = kept
    record = {"Branch", "StepRecord", "Verdict", "Piece"}
    forecasts = {"StepTimes", "TreeShape", "Conditions"}  # a cache of so many
    more = {kind: n for kind, n in (last - first).items() if n > 16}
    assert set(more) <= record | forecasts, more
    (tokens, before), (all_tokens, after) = bytes_at
    assert after - before < 3_000 * (all_tokens - tokens)


@pytest.mark.parametrize(("noise", "tokens"), [(0.3, 4), (0.3, 12), (1.0, 6)])
def test_reading_gains_what_the_formula_says(noise, tokens, monkeypatch):
    """(1 - a^n) / (1 - a) tokens in R + n d (docs/theory.md)."""
    monkeypatch.setattr(ReadStatistics, "portion_size", lambda *_: tokens)
    look = Lookahead(schedule="sync", max_step_tokens=20)
    made = [
        timed(look, Sampling(temperature=0.6, seed=seed), Exact(), noise)
        for seed in range(examples(12))
    ]
    a = sum(one.agreed_tokens for one in made) / sum(one.read_tokens for one in made)
    expected = (1 - a**tokens) / (1 - a) / (1.5 + 0.13 * tokens)
    gain = sum(len(one.ids) for one in made) / sum(one.seconds for one in made)
    assert gain == pytest.approx(expected, rel=0.1)


def test_a_draft_in_other_words_slows_down_the_first_exact_answer_only():
    """The next ones know what reads have given in the run, and read once now and then."""
    experience = RunStatistics()
    look = Lookahead(max_step_tokens=20)
    speeds = []
    for model in range(8):
        greedy = Sampling(temperature=0)
        made = timed(look, greedy, Exact(), 3.0, model, experience=experience)
        plain = write(autoregressive, Dice(model), None, greedy, max_tokens=200)
        assert (made.ids, made.text, made.finish) == (plain.ids, plain.text, plain.finish)
        speeds.append(len(made.ids) / made.seconds)
    assert min(speeds[1:]) > 0.93 and sum(speeds[1:]) / 7 > 0.95


def never_ahead(monkeypatch):
    """Nothing is expected of looking ahead."""
    monkeypatch.setattr(adaptive, "fastest_shape", lambda *_: TreeShape(2, 1, 0.0))
    monkeypatch.setattr(experience_of_runs, "forecast", lambda *_: 0.0)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.3, 1.8, 4.0), (3.0, 0.8, 1.05)])
def test_the_target_alone_reads_where_that_is_faster(noise, least, most, monkeypatch):
    """The answer is what the target writes, and no step of it counts as a judged one."""
    never_ahead(monkeypatch)
    look, experience = Lookahead(policy="adaptive", max_step_tokens=20), RunStatistics()
    greedy, found = Sampling(temperature=0), list[Any]()
    for model in range(12):
        made = timed(look, greedy, Same(), noise, model, experience=experience)
        plain = write(autoregressive, Dice(model), None, greedy, max_tokens=200)
        assert (made.ids, made.text, made.finish) == (plain.ids, plain.text, plain.finish)
        found.append(made)
    tokens = sum(len(made.ids) for made in found)
    assert least < tokens / sum(made.seconds for made in found) < most
    assert (sum(made.read_tokens for made in found) > tokens / 2) == (least > 1)
    assert experience.first.weight < 9  # probes


def test_the_target_alone_draws_each_token_it_reads_with_a_number_of_its_own(monkeypatch):
    never_ahead(monkeypatch)
    look, experience = Lookahead(policy="adaptive", max_step_tokens=20), RunStatistics()
    reads = 0
    for model in range(6):
        sampling = Sampling(temperature=0.6, seed=model)
        made = timed(look, sampling, Same(), 0.3, model, experience=experience)
        found: dict[Any, set[int]] = collections.defaultdict(set)
        for branch in made.branches:
            if branch.role == "target" and branch.generated_tokens == 1:
                found[branch.seed, branch.place].add(branch.prompt_tokens)
                reads += 1
        assert all(len(lengths) == 1 for lengths in found.values())
    assert reads > 40


def test_a_read_tells_nothing_of_what_a_written_token_costs(monkeypatch):
    told = []
    monkeypatch.setattr(Policy, "ended", lambda self, branch, n=0: told.append((branch.role, n)))
    more = {"verifier": Lenient(), "reading": "first", "readable": True}
    record = write(lookahead, Dice(3), Dice(3), Sampling(temperature=0.6), max_tokens=60, **more)
    assert record.read_tokens > 0 and ("target", 0) in told
    assert ("target", 1) not in told  # what a read writes


@pytest.mark.parametrize(("agreement", "reads"), [(0.95, True), (0.7, True), (0.3, False)])
def test_until_both_ways_were_timed_the_agreement_decides(agreement, reads):
    known, rng = ReadStatistics(), random.Random(1)
    assert known.reads_next(TYPICAL_TIMES)
    for _ in range(40):
        same = min(20, int(math.log(rng.random(), agreement)))
        known.compared(same, same < 20)
    assert {known.reads_next(TYPICAL_TIMES) for _ in range(20)} == {reads}


@pytest.mark.parametrize(("seconds", "others"), [(0.01, 3), (0.02, 10), (0.05, 9)])
def test_the_slower_way_is_tried_as_often_as_it_costs_little(seconds, others):
    known = ReadStatistics()
    for _ in range(4):
        known.version_came(True, seconds)
        known.version_came(False, 0.03)
    ways = [known.reads_next(TYPICAL_TIMES) for _ in range(640)]
    assert ways.count(seconds > 0.03) == others


@pytest.mark.parametrize(("noise", "reads"), [(0.2, True), (3.0, False)])
def test_writing_tells_what_reading_would_gain(noise, reads):
    """Two versions that are written with the same numbers agree as they would if one were read."""
    experience = RunStatistics()
    more = {"verifier": Lenient(), "reading": "never", "experience": experience}
    for seed in range(8):
        write(lookahead, Dice(3), Dice(3, noise), Sampling(temperature=0.6, seed=seed), **more)
    assert experience.reads.agreement.weight > 5
    assert (experience.reads.gain(experience.read_times()) > 1) == reads


def test_every_step_has_its_events():
    events = []
    sampling = Sampling(temperature=0.6, seed=1)
    record = write(lookahead, Dice(2), Dice(2, 0.3), sampling, on_event=events.append)
    kinds = [one.kind for one in events]
    drafted = [step for step in record.steps if step.verdicts]
    assert kinds.count("written") == len(record.steps) and kinds[-1] == "ended"
    assert kinds.count("drafted") == kinds.count("verified") == len(drafted) > 0
    assert kinds.count("accepted") == sum(step.source == "draft" for step in record.steps)
    for step in drafted:  # the draft's version is the step itself, or another
        assert step.verdicts[0].accepted == (step.draft_texts[0] == step.text), step


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"verifier": Lenient(), "reading": "first"},
        {"verifier": Lenient(), "reading": "never"},
        {"verifier": Lenient(), "policy": "adaptive"},
    ],
    ids=["exact", "read", "written", "adaptive"],
)
def test_every_branch_of_each_role_has_its_events(more):
    """Also what only reads, and the pieces that are read: a page shows a bar for each."""
    events = []
    sampling = Sampling(temperature=0.6, seed=1)
    record = write(lookahead, Dice(2), Dice(2, 0.3), sampling, on_event=events.append, **more)
    begun = [one for one in events if one.kind == "begun"]
    assert [one.role for one in begun] == [one.role for one in record.branches]
    assert {"target", "draft"} <= {one.role for one in begun}
    over = [one for one in events if one.kind in ("done", "cancelled")]
    done = {one.branch: one for one in over}
    assert len(done) == len(over), "each once"
    for number, branch in enumerate(record.branches, 1):
        if number in done:
            assert done[number].role == branch.role
            assert done[number].seconds >= begun[number - 1].seconds
        else:  # it ended with the answer, or after it
            assert branch.ended is None or branch.ended >= events[-1].seconds
    assert any(one.seconds > begun[number - 1].seconds for number, one in done.items())


def test_steps_are_told_while_their_tokens_arrive():
    told = []
    sampling = Sampling(temperature=0.6, seed=1)
    record = write(
        lookahead, Dice(2), Dice(2, 0.3), sampling, on_tokens=lambda ids: told.append(ids)
    )
    assert len(told) > 3 and record.ids


def test_what_was_drawn_stays_where_reading_ends():
    """The target goes on after the tokens that were shown, and draws none of them again: another
    draw only where the draft's token was refused would prefer the draft's tokens.
    """
    all_told = []
    for seed in range(1, 5):
        told = []
        sampling = Sampling(temperature=0.6, seed=seed)
        tell = lambda ids, told=told: told.append(tuple(ids))
        more = {"on_tokens": tell, "seeded": False, "readable": True}
        record = write(lookahead, Dice(4), Dice(11), sampling, max_tokens=100, **more)
        assert told and len(record.ids) > 3 * record.agreed_tokens
        for ids in told:
            shown = (record.ids[at : at + len(ids)] for at in range(len(record.ids)))
            assert ids in shown, ids
        all_told += told
    assert len(all_told) > 12


def test_an_exact_answer_begins_with_the_tokens_of_the_check():
    target = Dice(4)
    record = write(lookahead, target, Dice(4), Sampling(temperature=0.6, seed=5))
    (written, *_) = record.of("target")
    assert written.outcome == "bonus" and written.generated_tokens == 8
    assert not any(len(one["input_ids"]) == record.prompt_tokens for one in target.requests[1:])


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_the_draft_goes_on_while_the_target_reads(schedule):
    """One request of each at a time; a draft that is the target's own is never given up."""
    look = Lookahead(schedule=schedule, max_step_tokens=20)
    record = timed(look, Sampling(temperature=0.6, seed=3), Exact(), 0.0)
    reads, drafts = record.of("target"), record.of("draft")
    assert all(a.ended <= b.started for a, b in itertools.pairwise(reads))
    assert all(a.ended <= b.started for a, b in itertools.pairwise(drafts))
    beside = sum(any(r.started <= d.started < r.ended for r in reads) for d in drafts)
    assert beside >= len(drafts) - 2 if schedule == "async" else beside == 0


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_steps_that_are_drafted_while_the_target_reads_are_read_in_one_request(schedule):
    """No drafted token of a path is in two reads, and no step is another one than if each were
    written.
    """
    look = Lookahead(schedule=schedule, reading="first", max_step_tokens=20)
    sampling = Sampling(temperature=0.6, top_p=0.95, seed=2)
    target, draft = Timed(1), Timed(1)
    target.token, target.read, draft.token = 1.0, 6.0, 0.13
    backend = deployment(target=target, draft=draft)
    backend.readable = True
    request = AnswerRequest(look, sampling, Limits(max_tokens=200), verifier=Lenient())
    run_virtually(run_program(lookahead, CONVERSATION, request, backend=backend))
    read = [
        (one["logprob_start_len"] + 1, len(one["input_ids"]))
        for one in target.requests
        if one.get("logprob_start_len", -1) >= 0
    ]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(read))
    steps = [len(step.text) for step in request.trace.steps]
    assert max(end - start for start, end in read) > max(steps)
    assert 1 < len(read) < len(steps) / 2
    look = look.replace(schedule="sync", reading="never")
    written = timed(look, sampling, Lenient(), 0.0)
    assert request.trace.ids == written.ids


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_what_the_log_probabilities_do_not_decide_is_drawn_by_the_target(schedule, monkeypatch):
    """And no prompt is read twice."""
    monkeypatch.setattr(reader, "MOST_READ", 3)
    for seed in range(4):
        sampling = Sampling(temperature=1.0, top_p=0.9, seed=seed)
        more = {"schedule": schedule, "readable": True, "verifier": Lenient(), "max_tokens": 80}
        target = Dice(seed)
        made = write(lookahead, target, Dice(seed, 0.1), sampling, reading="first", **more)
        read = [
            (*one["input_ids"],) for one in target.requests if one.get("logprob_start_len", -1) >= 0
        ]
        assert len(read) > 4 and len(set(read)) == len(read)
        more["schedule"] = "sync"  # no draft is late, which would be refused
        written = write(lookahead, Dice(seed), Dice(seed, 0.1), sampling, reading="never", **more)
        assert made.ids == written.ids


class Slow(Agreeing):
    """Takes 5 s, while the target reads the step after."""

    async def verify(self, inquiry):
        await asyncio.sleep(5.0)
        return super().verify(inquiry)


def test_a_read_that_was_given_up_is_no_failure():
    """The target reads on, in this answer and in the next ones."""
    target, draft = Timed(1), Timed(1, 2.0)
    target.token, target.read, draft.token = 1.0, 20.0, 0.13
    backend = deployment(target=target, draft=draft)
    backend.readable = True
    look = Lookahead(reading="first", max_step_tokens=20)
    request = AnswerRequest(
        look, Sampling(temperature=0.6), Limits(max_tokens=200), Slow(same_start)
    )
    run_virtually(run_program(lookahead, CONVERSATION, request, backend=backend))
    reads = [one for one in request.trace.branches if one.purpose == "read"]
    whole = [one.ended - one.started > 19 for one in reads]
    assert False in whole and any(whole[whole.index(False) :])
    assert backend.readable is True


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_the_place_of_what_is_written_after_reading_is_that_of_its_first_token(schedule):
    for model in range(3):
        target = Dice(model)
        sampling = Sampling(temperature=0.6, seed=model)
        more = {"readable": True, "max_tokens": 120, "schedule": schedule}
        record = write(lookahead, target, Dice(model, 2.0), sampling, **more)
        for one in target.requests:
            begun = len(one["input_ids"]) - record.prompt_tokens
            assert place_of(one["sampling_params"].get("custom_params")) == begun


@pytest.mark.parametrize("seed", [0, 3, 2**31 - 1, 2**62 + 5])
def test_the_numbers_are_those_of_the_server(seed):
    ids = np.arange(768)
    for place in (0, 1, 77):
        key = seeds.keys(torch.tensor([seed]), torch.tensor([9]))
        theirs = seeds.uniform(key, torch.tensor([9 + place]), torch.from_numpy(ids).view(1, -1))
        assert (theirs[0].numpy() == uniform_of_ids(seed, place, ids)).all()


def test_what_is_drawn_from_the_likeliest_is_the_draw_or_nothing():
    rng, decided, asked = random.Random(1), 0, 0
    for number in range(examples(300)):
        spread = rng.choice([0.5, 2.0, 5.0])
        logits = torch.from_numpy(np.random.default_rng(number).normal(size=500)).float() * spread
        sampling = Sampling(
            temperature=rng.choice([0.3, 0.6, 1.0, 1.5]),
            top_p=rng.choice([0.5, 0.95, 1.0]),
            top_k=rng.choice([-1, 5, 40]),
            min_p=rng.choice([0.0, 0.05]),
        )
        key = seeds.keys(torch.tensor([number]), torch.tensor([0]))
        server = seeds.draw(
            torch.softmax(logits / sampling.temperature, -1).view(1, -1),
            key,
            torch.tensor([4]),
            top_ks=torch.tensor([sampling.top_k if sampling.top_k > 0 else 500]),
            top_ps=torch.tensor([sampling.top_p]),
            min_ps=torch.tensor([sampling.min_p]),
        )
        best, at = torch.log_softmax(logits, -1).topk(48)
        row = [(float(one), int(n), None) for one, n in zip(best, at, strict=True)]
        (own,) = target_draws([row], sampling, number, 4)
        asked += 1
        decided += own is not None
        for known in (2, 4, 8, 16):  # fewer of them decide less, and never otherwise
            (less,) = target_draws([row[:known]], sampling, number, 4)
            assert less in (None, int(server))
        assert own in (None, int(server))
    assert decided > asked / 3


def test_a_large_vocabulary_decides_nearly_every_draw():
    """Where a filter ends among the likeliest tokens is not known to the token; the draw mostly is."""
    sampling, decided = Sampling(temperature=0.6, top_p=0.95), {True: [], False: []}
    for number in range(20):
        logits = torch.from_numpy(np.random.default_rng(number).gumbel(size=50_000)).float() * 1.4
        best, at = torch.log_softmax(logits, -1).topk(48)
        row = [(float(one), int(n), None) for one, n in zip(best, at, strict=True)]
        for seed in range(20):
            server = seeds.draw(
                torch.softmax(logits / sampling.temperature, -1).view(1, -1),
                seeds.keys(torch.tensor([seed]), torch.tensor([0])),
                torch.tensor([4]),
                top_ps=torch.tensor([sampling.top_p]),
            )
            for kind, found in decided.items():
                (own,) = target_draws([row], sampling, seed, 4, server_draws=kind)
                assert own in (None, int(server))
                found.append(own is not None)
        # with numbers that are not the server's, what is decided is the same for all of them
        assert len(set(decided[False][-20:])) == 1
    known, strictly = (sum(decided[kind]) / len(decided[kind]) for kind in (True, False))
    assert known > 0.9 and strictly < 0.6, (known, strictly)
