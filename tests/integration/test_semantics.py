"""What lookahead reasoning keeps, refuses, counts and leaves alone, over scripted runtimes."""

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter

import pytest
import sglang as sgl

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call
from lr_sglang.errors import Cancelled, PromptTooLong, RuntimeDown
from lr_sglang.frontend.dsl import fork
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.judge import PROMPTS, agrees
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.sglang_api.plugin_protocol import place_of
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers.exact import Exact
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.random import Random
from tests import SCHEDULES, in_thread
from tests.scripted import (
    CONVERSATION,
    END,
    Agreeing,
    E,
    Same,
    ScriptedTransport,
    ShiftedTransport,
    Whole,
    answered,
    chapters,
    deployment,
    fixed,
    other_vocabulary,
    set_facts,
    slow,
)
from tests.serving import until

STEPS = ["First this.", "Then that.", "So far good.", "Almost there.", "Done: 42."]
WHOLE = "\n\n".join(STEPS)


def solve(
    target, draft=None, verifier=None, schedule="async", request=None, program=lookahead, **options
):
    backend = deployment(target=target, **({"draft": draft} if draft else {}))
    request = request or AnswerRequest(
        Lookahead(schedule=schedule, **options), verifier=verifier or Exact()
    )
    return answered(backend, request, program)


def both():
    """A target, and a draft that writes the same, sooner."""
    return ScriptedTransport(chapters(STEPS), slow(0.02)), ScriptedTransport(chapters(STEPS))


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


def test_an_accepted_step_keeps_the_drafts_text(schedule):
    target, draft = (
        fixed("One a.\n\nTwo b.\n\nEnd." + E, seconds=slow(0.01)),
        fixed("ONE A.\n\nTWO B.\n\nEND." + E),
    )
    record = solve(target, draft, Agreeing(), schedule)
    assert record.text == "ONE A.\n\nTWO B.\n\nEND."
    assert [s.source for s in record.steps] == ["draft"] * 3
    assert record.steps[0].target_text == "One a.\n\n"


def test_a_rejected_step_is_the_targets_and_what_follows_goes_on_from_it(schedule):
    answer = WHOLE + E
    draft = ScriptedTransport(
        lambda text, _: "no" + E if text.count("\n\n") == 2 else answer[len(text) :]
    )
    record = solve(ScriptedTransport(chapters(STEPS), slow(0.01)), draft, Exact(), schedule)
    assert record.text == WHOLE
    assert [s.outcome for s in record.steps] == [
        "accepted",
        "accepted",
        "corrected",
        "accepted",
        "accepted",
    ]
    assert record.cycles == 1


def test_the_half_sentence_guard_accepts_nothing_after_a_cut(schedule):
    answer = "abcdefgh\n\nij\n\nkl" + E
    guarded = solve(
        fixed(answer, seconds=slow(0.01)), fixed(answer), Agreeing(), schedule, max_step_tokens=5
    )
    assert guarded.text == "abcdefgh\n\nij\n\nkl"
    assert [s.text for s in guarded.steps if s.source == "target"] == ["fgh\n\n"]
    free = solve(
        fixed(answer, seconds=slow(0.01)),
        fixed(answer),
        Agreeing(),
        schedule,
        max_step_tokens=5,
        half_sentence_guard=False,
    )
    assert free.text == guarded.text
    assert all(s.source == "draft" for s in free.steps)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("Same." + E, "Same.\n\nMore." + E),
        ("Same.\n\nMore." + E, "Same." + E),
        ("Same.\n\nB." + E, "Same.more"),
        ("Same.more", "Same.\n\nB." + E),
        ("S</think>\n\nB" + E, "S\n\nB" + E),
        ("S\n\nB" + E, "S</think>\n\nB" + E),
    ],
    ids=["END/DEL", "DEL/END", "DEL/CAP", "CAP/DEL", "think/", "/think"],
)
def test_versions_that_end_differently_are_never_accepted(schedule, target, draft):
    """Not even by a judge that says yes to all it is asked."""
    verifier = Agreeing()
    record = solve(
        fixed(target, seconds=slow(0.1)),
        fixed(draft),
        verifier,
        schedule,
        max_step_tokens=len("Same.\n\n") if "Same.more" in (target, draft) else 20,
    )
    assert record.steps[0].source == "target"
    assert record.steps[0].verdicts[0].by == "ending"
    assert all(pair.target.ending is pair.draft.ending for pair in verifier.asked)


def test_a_draft_that_is_late_is_rejected_as_late():
    target = ScriptedTransport(chapters(STEPS), slow(0.01))
    backend = deployment(target=target, draft=fixed(WHOLE + E, seconds=slow(60)))
    record = answered(backend, AnswerRequest(verifier=Agreeing()), virtually=True)
    assert record.text == WHOLE and record.seconds < 1
    assert {v.by for s in record.steps for v in s.verdicts} == {"late"}
    assert record.outcomes()["draft"] == {"rejected": len(STEPS)}


@pytest.mark.parametrize(
    "limits", [Limits(max_tokens=17), Limits(max_total_tokens=17 + 7), Limits(max_tokens=1)]
)
@pytest.mark.parametrize("mode", ["autoregressive", *SCHEDULES])
@pytest.mark.parametrize("cap", [5, 100])
def test_the_token_budget_is_exact(limits, mode, cap):
    """The prompt of CONVERSATION has 7 tokens: four of text, and three marks."""
    request = AnswerRequest(
        Lookahead("async" if mode == "autoregressive" else mode, max_step_tokens=cap),
        limits=limits,
        verifier=Exact(),
    )
    program = autoregressive if mode == "autoregressive" else lookahead
    target = ScriptedTransport(chapters(STEPS), slow(0.003))
    record = solve(target, ScriptedTransport(chapters(STEPS)), request=request, program=program)
    assert record.prompt_tokens == 7
    assert len(record.ids) == (limits.max_tokens or 17)
    assert record.text == WHOLE[: len(record.ids)]
    assert record.finish == "length"


@pytest.mark.parametrize("program", [lookahead, autoregressive])
def test_a_prompt_that_leaves_no_room_is_too_long(program):
    target = ScriptedTransport(chapters(STEPS))
    with pytest.raises(PromptTooLong, match=r"^target: .*7 tokens"):
        solve(target, request=AnswerRequest(limits=Limits(max_total_tokens=7)), program=program)
    assert target.requests == []


def broken(when):
    return lambda text: RuntimeDown("gone") if when(text) else None


@pytest.mark.parametrize(
    "when",
    [lambda text: True, lambda text: len(text) % 2 == 0, lambda text: text.count("\n\n") >= 2],
    ids=["always", "sometimes", "from step 2"],
)
def test_a_failing_draft_makes_it_slower_and_never_wrong(schedule, when, monkeypatch):
    monkeypatch.setattr("lr_sglang.algorithm.answer_request.BACKOFF_SECONDS", 0.0)
    draft = ScriptedTransport(chapters(STEPS), fail=broken(when))
    record = solve(ScriptedTransport(chapters(STEPS), slow(0.01)), draft, Exact(), schedule)
    assert record.text == WHOLE
    assert record.failures["draft"] >= 1


def test_a_draft_that_failed_is_left_alone_for_a_while(schedule):
    draft = ScriptedTransport(chapters(STEPS), fail=broken(lambda text: True))
    record = solve(ScriptedTransport(chapters(STEPS), slow(0.01)), draft, Exact(), schedule)
    assert record.text == WHOLE
    assert len(draft.requests) == 1


def test_no_draft_at_all_is_plain_decoding(schedule):
    record = solve(ScriptedTransport(chapters(STEPS)), None, Exact(), schedule)
    assert [s.outcome for s in record.steps] == ["bonus"] * len(STEPS)
    assert record.text == WHOLE


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("program", [lookahead, autoregressive])
def test_a_failing_target_is_a_named_error_in_bounded_time(schedule, program, after):
    target = ScriptedTransport(
        chapters(STEPS),
        lambda text: 0.01 if text.count("\n\n") >= after else 0.001,
        fail=broken(lambda text: text.count("\n\n") >= after or program is autoregressive),
    )
    draft = ScriptedTransport(chapters(STEPS), slow(0.002))
    request = AnswerRequest(Lookahead(schedule), verifier=Exact())
    threads, started = threading.active_count(), time.monotonic()
    with pytest.raises(RuntimeDown, match=r"^target: ") as caught:
        solve(target, draft, request=request, program=program)
    assert time.monotonic() - started < 3
    assert not target.running | draft.running
    assert all(b.outcome for b in request.trace.branches)
    caught.value.__traceback__ = None
    settle(threads)


def settle(threads: int) -> None:
    """Threads that have been told to end have a moment for it."""
    until(lambda: threading.active_count() <= threads, 3)


def drawn(schedule, width=1, verifier=None, seed=7, question="q", sample=0, **look):
    """Each branch with the seed and the place that its runtime was asked to draw with."""
    request = AnswerRequest(
        Lookahead(schedule, width=width, depth=3, **look),
        Sampling(seed=seed),
        verifier=verifier or Same(),
        question=question,
        sample=sample,
    )
    target, draft = both()
    solve(target, draft, request=request)
    sent = {
        role: [
            (
                r["sampling_params"]["sampling_seed"],
                place_of(r["sampling_params"].get("custom_params")),
            )
            for r in transport.requests
        ]
        for role, transport in (("target", target), ("draft", draft))
    }
    assert {seed for seed, _ in sent["target"] + sent["draft"]} <= {
        b.seed for b in request.trace.branches
    }
    return request, sent


@pytest.mark.parametrize("width", [1, 2])
def test_a_step_is_drawn_with_the_same_numbers_by_the_target_and_by_one_draft(schedule, width):
    """Alternatives have numbers of their own, also those of one position under other parents."""
    request, sent = drawn(schedule, width)
    assert request.trace.shared_draws and not request.trace.lossless
    target, draft = (Counter(sent[role]) for role in ("target", "draft"))
    assert set((target + draft).values()) <= {1, 2} and max(target.values()) == 1
    assert max(draft.values()) == 1
    assert {place for _, place in target + draft} == {0}, "a step has a seed of its own"
    first = {(b.seed, 0) for b in request.trace.of("draft") if b.alternative == 0}
    others = {(b.seed, 0) for b in request.trace.of("draft") if b.alternative}
    assert first <= set(target) or schedule == "async"
    assert not others & set(target) and bool(others) == (width > 1)


def test_draws_of_their_own(schedule):
    request, sent = drawn(schedule, width=3, shared_draws=False)
    assert (request.trace.shared_draws, request.trace.own_draws) == (False, "shared_draws is off")
    every = Counter(sent["target"] + sent["draft"])
    assert len(sent["draft"]) > 3 and max(every.values()) == 1


def test_a_verifier_that_draws_shares_no_numbers_with_what_it_compares(schedule):
    """It may ask twice about one pair, and gets two replies; the same run asks the same again."""

    class Asks:
        name, exact = "asks", False

        async def verify(self, inquiry):
            for _ in range(2):
                state = fork(inquiry.state, "judge")
                state += sgl.gen("said", max_tokens=1, temperature=1.0)
                await inquiry.generation(state)
            return Verdict(True, "asks")

    def asked():
        judge = ScriptedTransport(lambda text, sampling: "n")
        target = ScriptedTransport(chapters(STEPS), slow(0.02))
        draft = ScriptedTransport(chapters([f"{step}." for step in STEPS]))
        request = AnswerRequest(Lookahead(schedule, depth=2), Sampling(seed=7), verifier=Asks())
        record = answered(deployment(target=target, draft=draft, judge=judge), request)
        steps = {b.seed for b in record.branches if b.role != "judge"}
        drawn = [one["sampling_params"]["sampling_seed"] for one in judge.requests]
        assert len(drawn) == len(set(drawn)) >= 2 and not steps & set(drawn)
        assert set(drawn) == {b.seed for b in record.of("judge")}
        return sorted(drawn)

    first, again = asked(), asked()
    # a draft may be late in the async schedule, and is not compared then
    assert first == again if schedule == "sync" else set(first) & set(again)


@pytest.mark.parametrize("width", [1, 2])
def test_an_exact_answer_has_one_seed_and_the_place_of_a_step_is_its_first_token(schedule, width):
    request, sent = drawn(schedule, width, Exact())
    assert request.trace.lossless == "text" and request.trace.shared_draws
    ends = list(itertools.accumulate((step.tokens for step in request.trace.steps), initial=0))
    own = request.seed()
    assert {seed for seed, _ in sent["target"]} == {own}
    assert set(ends[:-1]) <= {place for _, place in sent["target"]}
    assert (own, 0) in sent["draft"]
    alternatives = {b.seed for b in request.trace.of("draft") if b.alternative}
    assert own not in alternatives and bool(alternatives) == (width > 1)


def test_an_answer_that_nothing_identifies_draws_with_the_given_seed_itself():
    assert AnswerRequest(sampling=Sampling(seed=123)).seed() == 123
    assert AnswerRequest(sampling=Sampling(seed=123), question="q").seed() != 123
    assert AnswerRequest(sampling=Sampling(seed=123), sample=1).seed() != 123


def by_prompts_of_other_lengths(roles):
    """Servers without our plugin, and a draft with a longer template."""
    draft = roles["draft"].transport
    plain = draft.generate

    async def longer(*arguments):
        reply = await plain(*arguments)
        reply["meta_info"]["prompt_tokens"] += 3
        return reply

    draft.generate = longer
    set_facts(*roles.values(), places="prompt")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        # servers that count from the prompt share where the prompts are equal
        (lambda roles: set_facts(*roles.values(), places="prompt"), ""),
        (lambda roles: set_facts(roles["draft"], seeded=False), "draft: it honours no seed"),
        (
            lambda roles: setattr(roles["draft"].tokenizer, "vocabulary", "other"),
            "different vocabularies",
        ),
        (
            lambda roles: set_facts(roles["draft"], places="prompt"),
            "from the answer, the other from the prompt",
        ),
        (by_prompts_of_other_lengths, "from the prompts' beginnings"),
    ],
)
def test_what_is_not_shared_says_why(change, why):
    """And one runtime without seeds is enough for another answer each time."""
    target, draft = both()
    backend = deployment(target=target, draft=draft)
    change(backend.roles)
    record = answered(backend, AnswerRequest(Lookahead("sync"), verifier=Same(), question="q"))
    assert record.of("draft") and record.shared_draws is (not why)
    assert why in record.own_draws and bool(record.own_draws) is bool(why)
    assert record.seeded is ("honours no seed" not in why)


def test_the_same_run_has_the_same_seeds_and_another_has_others(schedule):
    def seeds(**given):
        request, _ = drawn(schedule, verifier=Exact(), **given)
        return {(b.role, b.position, b.alternative): b.seed for b in request.trace.branches}

    first, again = seeds(), seeds()
    common = first.keys() & again.keys()
    assert len(common) >= 2 * len(STEPS) - 1
    assert {k: first[k] for k in common} == {k: again[k] for k in common}
    for other in ({"seed": 1}, {"question": "r"}, {"sample": 1}):
        assert not set(first.values()) & set(seeds(**other).values())


def test_a_runtime_that_honours_no_seed_is_sent_none_and_the_record_says_so():
    target = ScriptedTransport(chapters(STEPS))
    backend = deployment(target=target)
    set_facts(backend, seeded=False)
    record = answered(backend, AnswerRequest(verifier=Exact()))
    assert record.seeded is False and record.lossless == "distribution"
    assert not any("sampling_seed" in r["sampling_params"] for r in target.requests)


def test_an_answer_that_is_stopped_before_it_begins_asks_for_nothing():
    target, request = ScriptedTransport(chapters(STEPS)), AnswerRequest(verifier=Exact())
    request.stop()
    with pytest.raises(Cancelled):
        solve(target, ScriptedTransport(chapters(STEPS)), request=request)
    assert not request.trace.text and not target.running


def test_a_draft_that_writes_nothing_is_no_step(schedule):
    """A step without tokens would end the answer."""
    record = solve(
        fixed(WHOLE + E, seconds=slow(0.01)), ScriptedTransport(lambda *_: ""), Agreeing(), schedule
    )
    assert record.text == WHOLE and record.failures["draft"] == 0
    assert {v.by for step in record.steps for v in step.verdicts} <= {"draft", "late"}


# -- the judge


def judged(label, target="Ist A.\n\nEnd" + E, draft="Is A.\n\nEnd" + E, schedule="async"):
    judge = ScriptedTransport(lambda text, sampling: label)
    backend = deployment(target=fixed(target, seconds=slow(0.01)), draft=fixed(draft), judge=judge)
    backend.roles["judge"].tokenizer = Whole()
    verifier = Judge(backend.roles["judge"], PROMPTS["paper"])
    return answered(backend, AnswerRequest(Lookahead(schedule), verifier=verifier)), judge


@pytest.mark.parametrize(
    ("label", "yes"),
    [
        ("aligned", True),
        ("unaligned", False),
        ("ali", True),
        ("Aligned", False),
        ("", False),
        ("un", False),
    ],
)
def test_the_label_decides_by_the_papers_rule(label, yes):
    assert agrees(label) is yes


@pytest.mark.parametrize(
    ("label", "text"), [("A", "Is A.\n\nEnd"), ("U", "Ist A.\n\nEnd"), ("?", "Ist A.\n\nEnd")]
)
def test_the_judge_decides(schedule, label, text):
    record, judge = judged(label, schedule=schedule)
    assert record.text == text
    assert record.steps[0].verdicts[0].by == "judge"
    assert record.outcomes()["judge"]
    asked = judge.requests[0]["sampling_params"]
    assert (asked["max_new_tokens"], asked["temperature"]) == (1, 0.0)


def test_versions_identical_but_for_space_around_them_need_no_question(schedule):
    record, judge = judged("U", " a \n\nEnd" + E, "  a\n\nEnd" + E, schedule)
    assert record.text == "  a\n\nEnd"
    assert judge.requests == []
    assert record.steps[0].verdicts[0].by == "identical"


def test_what_is_judged_cannot_speak_for_the_judge():
    """Braces stay as they are, and there are no more role marks than one question has."""
    _, judge = judged("A", "x {draft} {0}.\n\nEnd" + E, "y {target} {}.\n\nEnd" + E)
    prompt = judge.requests[0]["input_ids"]
    text = "".join(map(chr, prompt))
    assert "x {draft}" in text
    assert "y {target} {}." in text
    assert [i for i in prompt if i <= END] == [1, 2, 1], (
        "the marks of one user message and of the answer"
    )
    assert text.endswith("[")


def stopped(request, backend, begun):
    """Stops an answer once something has begun."""
    thread, raised = in_thread(lambda: lookahead.run(CONVERSATION, request, backend=backend))
    until(begun, 60)
    request.stop()
    thread.join(60)
    assert [type(one) for one in raised] == [Cancelled]
    assert all(b.outcome for b in request.trace.branches)


def test_a_judge_in_flight_when_the_answer_ends_is_cancelled():
    judge = ScriptedTransport(lambda text, sampling: "A", slow(600))
    backend = deployment(
        target=fixed("Ist" + E, seconds=slow(0.01)), draft=fixed("Is" + E), judge=judge
    )
    request = AnswerRequest(verifier=Judge(backend.roles["judge"], PROMPTS["paper"]))
    stopped(request, backend, lambda: judge.running)
    assert not judge.running
    assert request.trace.outcomes()["judge"] == {"cancelled": 1}


class Slowly:
    """A verifier with a thread of its own that replies long after the answer may have ended."""

    name = "slowly"

    def __init__(self):
        self.asked, self.reply = threading.Event(), threading.Event()

    async def verify(self, inquiry):
        self.asked.set()
        await asyncio.to_thread(self.reply.wait)
        return Verdict(True, self.name)


def test_a_verifier_that_replies_after_the_end_disturbs_nothing():
    verifier = Slowly()
    request = AnswerRequest(Lookahead(depth=3), verifier=verifier)
    target, draft = both()
    stopped(request, deployment(target=target, draft=draft), verifier.asked.is_set)
    known = request.trace.outcomes()
    verifier.reply.set()
    call(asyncio.to_thread(lambda: None))
    assert request.trace.outcomes() == known


# -- two vocabularies


def test_other_vocabularies_meet_at_step_boundaries(schedule):
    """The draft's steps are text to the target, tokenised anew, one by one."""
    target = fixed("a.\n\nb.\n\nc." + E, seconds=slow(0.01))
    draft = ShiftedTransport(chapters(["A.", "B.", "C."]))
    record = other_vocabulary(target, draft, Lookahead(schedule), Agreeing())
    assert record.text == "A.\n\nB.\n\nC."
    assert {r["text"] for r in target.requests} >= {"", "A.\n\n", "A.\n\nB.\n\n"}
    assert all(s.source == "draft" for s in record.steps)


def test_other_vocabularies_are_never_exactly_the_same(schedule):
    target, draft = (kind(chapters(STEPS)) for kind in (ScriptedTransport, ShiftedTransport))
    target.seconds = slow(0.01)
    record = other_vocabulary(target, draft, Lookahead(schedule, depth=2), Exact())
    assert record.text == WHOLE
    assert record.accepted == 0


def test_an_alternative_that_agreed_and_was_not_chosen_is_not_rejected():
    request = AnswerRequest(Lookahead("sync", depth=1, width=2), verifier=Agreeing())
    record = solve(fixed(WHOLE + E), fixed(WHOLE + E), request=request)
    assert record.text == WHOLE
    assert record.outcomes()["draft"] == {"accepted": record.accepted, "cancelled": record.accepted}


def test_a_random_oracle_accepts_about_its_share():
    answer = "".join(f"step {n}.\n\n" for n in range(60)) + E
    record = solve(fixed(answer, seconds=slow(0.002)), fixed(answer), Random(0.5), "sync", depth=4)
    assert record.alpha is not None
    assert 0.25 < record.alpha < 0.75


def test_what_follows_a_step_does_not_see_the_tokens_that_were_dropped_after_it(schedule):
    """A delimiter astride a cut ends the step there, though the server wrote on."""
    answer = "abcd\n\n\nef\n\ngh" + E
    for draft in (None, fixed(answer)):
        record = solve(
            fixed(answer, seconds=slow(0.01)), draft, Exact(), schedule, max_step_tokens=5
        )
        assert record.text == answer[:-1]


def test_an_interrupt_while_waiting_leaves_nothing_running():
    """Ctrl-C reaches the main thread where it waits for the runtimes."""
    target, draft = fixed(WHOLE + E, seconds=slow(600)), fixed(WHOLE + E, seconds=slow(600))
    request = AnswerRequest(verifier=Exact())
    threads = threading.active_count()

    def interrupt():
        until(lambda: target.running and draft.running, 60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread, raised = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        solve(target, draft, request=request)
    assert not raised
    assert not target.running | draft.running
    assert all(b.outcome for b in request.trace.branches)
    caught.value.__traceback__ = None
    thread.join()
    settle(threads)


def test_what_the_target_writes_after_a_rejected_draft_is_aborted_with_it():
    wrong = "no.\n\n"
    target = ScriptedTransport(
        lambda text, _: wrong if text.startswith(wrong) else (WHOLE + E)[len(text) :],
        lambda text: 30.0 if text.startswith(wrong) else 0.1,
    )
    draft = ScriptedTransport(lambda text, _: wrong)
    left = []

    def told(step):
        prompts = {one["rid"]: one["text"] for one in target.requests}
        running = [prompts[one.rid] for one in target.running if not one.cancelled]
        left.append(sum(prompt.startswith(wrong) for prompt in running))

    request = AnswerRequest(Lookahead("async", depth=3), verifier=Exact(), on_step=told)
    record = answered(deployment(target=target, draft=draft), request, virtually=True)
    assert record.text == WHOLE
    assert any(one["text"].startswith(wrong) for one in target.requests), "it was asked ahead"
    assert left == [0] * len(STEPS)


def test_what_a_runtime_wrote_past_the_end_counts_as_generated():
    """A pass of the token layer gives several tokens, also after the end of sequence."""
    target = ScriptedTransport(lambda text, _: (WHOLE + E)[len(text) :])
    target.passes = 4
    replies, reply = [], target._reply
    target._reply = lambda *given: (replies.append(reply(*given)), replies[-1])[1]
    request = AnswerRequest(Lookahead("async", max_step_tokens=12), verifier=Exact())
    record = answered(deployment(target=target), request, virtually=True)
    assert record.text == WHOLE
    wrote = sum(len(one["output_ids"]) for one in replies)
    tokens = record.tokens()
    assert tokens["generated"] == wrote == tokens["used"] + tokens["wasted"]
    assert wrote > len(record.ids)
