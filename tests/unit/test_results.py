"""Records, the folder that keeps them, and the figures made of them."""

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.errors import PromptTooLong, RecordError, RuntimeTimeout
from lr_sglang.results import accounting, collection, machine, report, store
from lr_sglang.results import statistics as st
from lr_sglang.results.record import ReportRow, make_record, of_branch
from lr_sglang.steps.branch import Branch, Outcome, waits
from lr_sglang.steps.step import Verdict
from lr_sglang.steps.trace import StepRecord
from lr_sglang.tasks import Question
from lr_sglang.theory.shares import wilson
from tests import FULL, synthetic

CONFIG = {"mode": "lookahead", "lookahead": {"depth": 6}, "sampling": {"seed": 0}}


def request(text="One.\n\n\\boxed{17}", sample=0, seconds=2.0):
    """A finished answer: a drafted step and a corrected one."""
    made = AnswerRequest(question="q", sample=sample)
    trace = made.trace
    trace.text, trace.ids, trace.finish, trace.seconds = text, (5, 6, 7, 8), "stop", seconds
    trace.steps = [
        StepRecord(
            0,
            "One.\n\n",
            2,
            "draft",
            "accepted",
            "delimiter",
            1.0,
            "One!",
            ("One.",),
            (Verdict(True, "judge"),),
        ),
        StepRecord(
            1,
            "x",
            2,
            "target",
            "corrected",
            "end of sequence",
            2.0,
            "x",
            ("y",),
            (Verdict(False, "judge"),),
        ),
    ]
    for role, outcome, generated, cached, shared in (
        ("target", Outcome.ACCEPTED, 3, 8, 10),
        ("target", Outcome.CORRECTED, 2, 9, 10),
        ("draft", Outcome.ACCEPTED, 2, 0, 0),
        ("draft", Outcome.REJECTED, 3, 9, 5),
        ("judge", Outcome.ACCEPTED, 1, 20, 40),
    ):
        branch = Branch(
            role,
            0,
            prompt_tokens=20,
            cached_tokens=cached,
            shared_tokens=shared,
            generated_tokens=generated,
        )
        branch.close(outcome)
        trace.branches.append(branch)
    return made


def record(name="q", sample=0, mode="lookahead", gold="17", seconds=2.0, **changes):
    made = make_record(
        Question(name, "how many?", gold),
        mode,
        request(sample=sample, seconds=seconds),
        CONFIG,
        {"sglang": "1"},
    )
    return {**made, **changes}


def opened(folder, config=CONFIG, **more):
    return store.Store(folder, config, {"versions": {"sglang": "1"}}, **more)


# -- the record


def test_a_record_has_what_the_release_promises():
    made = json.loads(json.dumps(record()))
    promised = (
        "question_id sample mode question gold text answer correct steps seconds seed "
        "config versions"
    )
    assert set(promised.split()) <= made.keys()
    assert (made["answer"], made["correct"], made["alpha"]) == ("17", True, 0.5)
    assert made["tokens"]["generated"] == 10
    assert made["tokens"]["used"] + made["tokens"]["wasted"] == made["tokens"]["generated"]
    assert made["tokens"]["target"]["reuse"] == 17 / 20
    assert made["tokens"]["draft"]["reuse"] == 1.0, "others' tokens in the cache do not count"
    assert (
        made["tokens"]["judge"] | {"reuse": 0.5, "hit_rate": 1.0, "calls": 1}
        == made["tokens"]["judge"]
    )
    assert made["steps"][0]["verdicts"][0]["by"] == "judge"
    assert made["outcomes"]["draft"] == {"accepted": 1, "rejected": 1}
    assert len(made["branches"]) == 5


def test_a_failed_sample_says_why():
    error = PromptTooLong("too long", role="target", hint="shorten it")
    made = make_record(
        Question("q", "?", "1"), "lookahead", AnswerRequest(question="q"), CONFIG, {}, error
    )
    assert (
        made["error"] | {"kind": "PromptTooLong", "role": "target", "retryable": False}
        == made["error"]
    )
    assert made["correct"] is False
    assert made.keys() == record().keys()


# -- what is kept in memory


def test_what_is_kept_of_a_record_are_its_short_fields(tmp_path):
    with opened(tmp_path) as run:
        run.append(record("a"))
        run.append(record("b", text="\ud800 \u2028 the rest"))
        kept = run.records["b", 0, "lookahead"]
    assert (kept["seconds"], kept["tokens"]["generated"], kept.steps) == (2.0, 10, 2)
    assert kept.get("text") is None and "branches" not in kept
    with pytest.raises(KeyError):
        kept["steps"]
    assert kept.whole()["text"] == "? \u2028 the rest" and len(kept.whole()["branches"]) == 5


# -- the folder


def test_what_is_appended_is_there_when_the_run_is_resumed(tmp_path):
    with opened(tmp_path) as first:
        first.append(record("a"))
        first.append(record("b", sample=1))
    with opened(tmp_path, resume=True) as again:
        assert list(again.records) == [("a", 0, "lookahead"), ("b", 1, "lookahead")]
        assert again.done(("a", 0, "lookahead"))
        assert not again.done(("a", 1, "lookahead"))
        assert not again.done(("a", 0, "autoregressive"))
        assert again.cut == 0


def test_empty_lines_and_an_end_without_its_line_feed_are_no_damage(tmp_path):
    with opened(tmp_path) as first:
        for name in "ab":
            first.append(record(name))
    whole = first.path.read_bytes()
    first.path.write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n\r\n").rstrip())
    with opened(tmp_path, resume=True) as again:
        assert [name for name, *_ in again.records] == ["a", "b"]
        assert (again.cut, again.unread) == (0, "")
        again.append(record("c"))
    assert len(list(store.each_record(tmp_path))) == 3


@pytest.mark.parametrize("left", [1, 40, -2])
def test_a_line_that_was_cut_off_goes_and_nothing_else(tmp_path, left):
    with opened(tmp_path) as first:
        first.append(record("a"))
        whole = first.path.read_bytes()
        first.append(record("b"))
        both = first.path.read_bytes()
    end = len(whole) + left if left > 0 else len(both) + left
    first.path.write_bytes(both[:end])
    with opened(tmp_path, resume=True) as again:
        assert list(again.records) == [("a", 0, "lookahead")]
        assert again.cut == end - len(whole)
        again.append(record("b"))
    assert first.path.read_bytes() == both


def test_another_configuration_is_refused_by_name(tmp_path):
    with opened(tmp_path) as first:
        first.append(record())
    with pytest.raises(RecordError, match=r"lookahead\.depth: 6 then, 4 now"):
        opened(tmp_path, {**CONFIG, "lookahead": {"depth": 4}}, resume=True)
    with pytest.raises(
        RecordError, match=r"\(mode, lookahead, sampling then, other now\)"
    ) as caught:
        opened(tmp_path, {"other": {f"setting {n}": n for n in range(40)}}, resume=True)
    assert len(caught.value.message) < 300
    many = {**CONFIG, "lookahead": {f"setting {n}": "x" * 500 for n in range(40)}}
    with pytest.raises(RecordError, match=r"then, .* now; \.\.\.\)") as caught:
        opened(tmp_path, many, resume=True)
    assert len(caught.value.message) < 600
    opened(tmp_path, resume=True).__exit__()  # the refusal let go of the folder


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(store.time, "time", lambda: 1e9)
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: store.new_folder(tmp_path / "runs", "gsm8k"), range(24))
    assert len(set(made)) == 24
    (tmp_path / "link").symlink_to("nowhere/at-all")
    (tmp_path / "file").touch()
    for wrong in ("link", "file"):
        with pytest.raises(RecordError, match="cannot be written"):
            store.new_folder(tmp_path / wrong, "gsm8k")


def test_two_runs_do_not_share_a_folder(tmp_path):
    with opened(tmp_path), pytest.raises(RecordError, match="another run is writing"):
        opened(tmp_path, resume=True)
    opened(tmp_path).__exit__()


DAMAGED = [
    b"{}",
    b"nonsense",
    b'{"schema":1}',
    b"[]",
    b'{"schema":1,"question_id":[],"sample":0,"mode":"sd"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((line, "no record") for line in DAMAGED),
        (json.dumps(record(schema=store.RECORD_SCHEMA + 1)).encode(), "written by a later release"),
    ],
)
def test_a_line_that_is_no_record_is_named_and_the_others_are_used(tmp_path, line, said):
    with opened(tmp_path) as first:
        first.append(record())
    damaged = line + b"\n" + first.path.read_bytes()
    first.path.write_bytes(damaged)
    with opened(tmp_path, resume=True) as again:
        assert list(again.records) == [("q", 0, "lookahead")]
        assert f"records.jsonl: 1 line is left out: line 1 is {said}" in again.unread
    assert first.path.read_bytes() == damaged, "nothing of it is lost"
    first.path.write_bytes(line + b"\n")
    with pytest.raises(RecordError, match=f"no record in it: line 1 is {said}"):
        opened(tmp_path, resume=True)


def test_what_failed_for_a_passing_reason_is_made_again(tmp_path):
    passing = RuntimeTimeout("late", role="target")
    lasting = PromptTooLong("long", role="target")
    with opened(tmp_path) as first:
        for name, error in (("a", passing), ("b", lasting)):
            first.append(
                make_record(
                    Question(name, "?"),
                    "lookahead",
                    AnswerRequest(question=name),
                    CONFIG,
                    {},
                    error,
                )
            )
        assert not first.done(("a", 0, "lookahead"))
        assert first.done(("b", 0, "lookahead"))
        first.append(record("a"))
        assert first.done(("a", 0, "lookahead"))
    with opened(tmp_path, resume=True) as again:
        assert again.records["a", 0, "lookahead"]["error"] is None
        assert len(again.records) == 2


def test_a_record_reaches_the_disk_in_one_write(tmp_path, monkeypatch):
    events = []
    with opened(tmp_path) as first:
        write, sync = store.os.write, store.os.fsync
        monkeypatch.setattr(
            store.os, "write", lambda f, data: (events.append("write"), write(f, data))[1]
        )
        monkeypatch.setattr(store.os, "fsync", lambda f: (events.append("sync"), sync(f))[1])
        first.append(record())
    assert events == ["write", "sync"]


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fails_is_a_named_error(tmp_path, monkeypatch):
    with opened(tmp_path) as first, monkeypatch.context() as broken:
        for step in ("write", "ftruncate"):
            broken.setattr(store.os, step, no_space)
        with pytest.raises(RecordError, match=r"records\.jsonl: cannot write a record"):
            first.append(record("a"))


@pytest.mark.parametrize("text", ['{"command": {}, "variants": {}}', '{"mine": 1}', "[]", "{"])
def test_a_run_file_of_something_else_is_not_replaced(tmp_path, text):
    """As of a benchmark, whose records are in folders below it."""
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=r"run\.json is .* of another command"):
        opened(tmp_path)
    assert file.read_text() == text


def test_a_run_that_made_no_record_is_begun_anew(tmp_path):
    for config in (CONFIG, CONFIG | {"other": 1}):
        with opened(tmp_path, config):
            assert json.loads((tmp_path / "run.json").read_text())["config"] == config


@pytest.mark.parametrize(
    ("step", "fails", "said"),
    [
        ("write", lambda file, data, write=os.write: write(file, data[:50]), "the disk is full"),
        ("write", no_space, "No space left"),
        ("fsync", no_space, "No space left"),
    ],
    ids=["half", "write", "sync"],
)
def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch, step, fails, said):
    with opened(tmp_path) as first:
        first.append(record("a"))
        before = first.path.read_bytes()
        with monkeypatch.context() as full:
            full.setattr(store.os, step, fails)
            with pytest.raises(RecordError, match=said):
                first.append(record("b"))
        assert first.path.read_bytes() == before
        assert ("b", 0, "lookahead") not in first.records
        first.append(record("c"))  # there is room again
    assert [json.loads(line)["question_id"] for line in first.path.open()] == ["a", "c"]


@pytest.mark.parametrize("step", ["mkdir", "open", "fsync"])
def test_a_folder_on_a_full_disk_is_told_with_what_to_do(tmp_path, monkeypatch, step):
    """Its lock too."""
    with monkeypatch.context() as full:
        full.setattr(store.os, step, no_space)
        with pytest.raises(RecordError, match="cannot be written: No space left") as caught:
            opened(tmp_path / "new" / "run")
    assert caught.value.hint == "give another --output"
    opened(tmp_path / "new" / "run").__exit__()


def test_a_link_stays_one_and_a_pipe_is_no_place_for_a_file(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "there")
    store.replace_file(link, [b"page"])
    assert link.is_symlink() and (tmp_path / "there").read_bytes() == b"page"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe"):
        store.replace_file(pipe, [b"page"])
    assert pipe.is_fifo()


def test_wilson_agrees_with_the_book():
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert all(wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0 for n in range(1, 200))
    assert wilson(0, 0) is None


def test_versions_name_the_engine():
    assert {"sglang", "torch", "transformers", "lr_sglang", "python"} <= machine.versions().keys()
    assert machine.machine()["cores"]


# -- estimates


REPETITIONS = 200 if FULL else 20


def measured(records):
    """Of lookahead, in records as ``collection.read_runs`` sorts them, without a folder."""
    groups = {}
    for record in records:
        collection.group_of(record, 1, groups).rows.append(ReportRow(record))
    found = collection.Collection(collection.labelled(list(groups.values())), [], [])
    return report.measure_group(found, next(g for g in found.groups if g.mode == "lookahead"))


# -- estimates


def test_one_sample_a_question_is_wilsons_interval():
    estimate = st.share_estimate({n: (n < 7, 1) for n in range(10)})
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.7, *wilson(7, 10)))
    assert (estimate.samples, estimate.questions) == (10, 10)


def test_samples_of_one_question_are_worth_less_than_as_many_questions():
    """Eight samples that all go the same way tell no more than one."""
    alike = st.share_estimate({n: (8 * (n % 2), 8) for n in range(40)})
    apart = st.share_estimate(dict.fromkeys(range(40), (4, 8)))
    alone = st.share_estimate({n: (n % 2, 1) for n in range(40)})
    assert alike.value == apart.value == 0.5
    assert alike.high - alike.low == pytest.approx(alone.high - alone.low, rel=0.15)
    assert apart.high - apart.low < 0.5 * (alike.high - alike.low)


@pytest.mark.parametrize("questions", [1, 7, 8, 200])
def test_fewer_than_eight_questions_have_no_interval(questions):
    chance = np.random.default_rng(questions)
    columns = [chance.lognormal(0, 1, questions), chance.lognormal(0, 1, questions)]
    ratio = st.product(columns, [1, -1], questions)
    assert ratio.value == pytest.approx(columns[0].sum() / columns[1].sum())
    rates = st.share_estimate({n: (n % 3, 4) for n in range(questions)})
    alike = st.share_estimate(dict.fromkeys(range(questions), (1, 1)))
    accuracy = st.difference({n: [0, n % 2] for n in range(questions)})
    for one in (ratio, rates, alike, accuracy):
        if questions < 8:
            assert one.low is one.high is None
        else:
            assert -1 < one.low <= one.value <= one.high < math.inf
            assert one.low < one.high
    assert questions >= 8 or accuracy.verdict == "open"


def test_an_interval_is_no_nan_where_a_resample_may_have_nothing_to_divide_by():
    estimate = st.product([[0.0] * 8 + [3.0], [0.0] * 7 + [1.0, 1.0]], [1, -1], 9)
    assert estimate.value == pytest.approx(1.5)
    assert 0 <= estimate.low <= estimate.value <= estimate.high < math.inf


def test_nothing_is_no_estimate():
    assert st.share_estimate({}) is None
    assert st.share_estimate({"q": (0, 0)}) is None
    assert st.product([[], []], [1, -1], 0) is None
    assert st.product([[0.0, 0.0], [1.0, 2.0]], [1, -1], 2) is None
    assert st.difference({}) is None


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-5, 0.0])
def test_one_slow_question_among_equal_ones_is_no_infinite_interval(apart):
    """As the first question of a run with random weights, where all the others take the same."""
    seconds = 1 + apart * np.random.default_rng(0).standard_normal(12)
    seconds[0] = 2
    estimate = st.product([seconds, np.ones(12)], [1, -1], 12)
    assert 0.8 < estimate.low < estimate.value < estimate.high < 1.5


# -- non-inferiority


@pytest.mark.parametrize(
    ("each", "questions", "verdict"),
    [
        ([0, 0], 10, "open"),  # few questions prove little, however equal
        ([0, 0], 400, "kept"),
        ([-1, 0], 100, "worse"),
        ([1, 1], 20, "kept"),
    ],
)
def test_quality_is_kept_only_if_the_whole_interval_says_so(each, questions, verdict):
    found = st.difference(dict.fromkeys(range(questions), each))
    assert found.verdict == verdict
    assert found.low < found.high


# -- a made-up run is recovered

TRUTH = synthetic.Truth(alpha=0.6, c1=0.15, judge=0.03, accuracy=0.8, loss=0.04, steps=8)


@pytest.fixture(scope="module")
def expected_speed():
    """What the made-up run gains in the long run, from many more answers."""
    sums = {mode: [0.0, 0.0] for mode in ("autoregressive", "lookahead")}
    for one in synthetic.run(TRUTH, questions=1500, samples=1, seed=10**6):
        sums[one["mode"]][0] += one["tokens"]["used"]
        sums[one["mode"]][1] += one["seconds"]
    (few, slow), (many, fast) = sums.values()
    return many / fast / (few / slow)


def test_known_numbers_are_recovered_within_their_intervals(expected_speed):
    """In 95 % of the repetitions, each of five figures. An interval of 95 % holds the truth 190
    times of 200, give or take 3.1: allowed are 2.6 standard deviations less, for the five together
    a chance of failure of about 2 %.
    """
    hits = dict.fromkeys(("alpha", "c1", "judge", "accuracy", "speed"), 0)
    for seed in range(REPETITIONS):
        of = measured(synthetic.run(TRUTH, questions=30, samples=2, seed=seed))
        hits["alpha"] += of.alpha.holds(TRUTH.alpha)
        hits["c1"] += of.c1.holds(TRUTH.c1)
        hits["judge"] += abs(of.judge_seconds.value - TRUTH.judge) < 1e-6
        hits["accuracy"] += of.difference.holds(-TRUTH.loss)
        hits["speed"] += of.speed.tokens.holds(expected_speed)
    least = 0.95 * REPETITIONS - 2.6 * math.sqrt(0.95 * 0.05 * REPETITIONS)
    assert all(count >= least for count in hits.values()), (hits, REPETITIONS)


def test_what_the_formulas_expect_of_it_is_near():
    records = synthetic.run(TRUTH, questions=200, samples=1, seed=3)
    of = measured(records)
    # the rest is uneven steps
    assert of.expected.speedup == pytest.approx(of.speed.tokens.value, rel=0.06)
    assert of.expected.speedup > of.speed.tokens.value
    assert of.expected.c1 == pytest.approx(0.15, abs=0.01)
    for record in records:
        if record["config"]["lookahead"]:
            record["config"]["lookahead"]["policy"] = "adaptive"
    assert measured(records).expected is None, "there is no depth to reckon with"


# -- where the time went


def test_the_parts_of_every_answer_sum_to_its_time():
    for record in synthetic.run(TRUTH, questions=20, samples=2):
        parts = accounting.parts(record)
        assert sum(parts.values()) == pytest.approx(record["seconds"], rel=0.02)
        # it took no time, and nothing is left to it
        assert parts["controller"] <= 0.02 * record["seconds"]
        pieces = accounting.critical_path(record)
        assert pieces[0].start == 0 and pieces[-1].end == record["seconds"]
        assert all(a.end == pytest.approx(b.start) for a, b in pairwise(pieces))


def answer(steps, branches, seconds):
    return {"steps": steps, "branches": branches, "seconds": seconds, "error": None}


def made(position, source, outcome, seconds, by="judge", judge=0.0, accepted=None):
    step = synthetic.kept(position, 1.0, source, outcome, seconds, 9, judge, accepted)
    if step["verdicts"]:
        step["verdicts"][0]["by"] = by
    return step


WAITED = {**synthetic.branch("target", 0, 0.1, 2.0, "bonus", 9), "queued": 0.4, "prefill": 0.5}


@pytest.mark.parametrize(
    ("branches", "steps", "expected"),
    [
        # Two steps at depth 2: the second target step starts when the first draft is there, and is
        # what comes last.
        (
            [
                synthetic.branch("draft", 0, 0.0, 0.3, "accepted", 9),
                synthetic.branch("target", 0, 0.0, 1.0, "accepted", 9),
                synthetic.branch("judge", 0, 1.0, 1.1, "accepted", 1),
                synthetic.branch("draft", 1, 0.3, 0.6, "accepted", 9),
                synthetic.branch("target", 1, 0.3, 1.3, "accepted", 9),
                synthetic.branch("judge", 1, 1.3, 1.4, "accepted", 1),
            ],
            [
                made(0, "draft", "accepted", 1.1, judge=0.1, accepted=True),
                made(1, "draft", "accepted", 1.4, judge=0.1, accepted=True),
            ],
            {"draft": 0.3, "target": 1.0, "judge": 0.1},
        ),
        (
            [
                synthetic.branch("draft", 0, 0.0, 1.02, "rejected", 9),
                synthetic.branch("target", 0, 0.0, 1.0, "corrected", 9),
                synthetic.branch("target", 1, 1.0, 2.0, "bonus", 9),
            ],
            [
                made(0, "target", "corrected", 1.0, by="late", accepted=False),
                made(1, "target", "bonus", 2.0),
            ],
            {"target": 1.0, "late": 1.0},
        ),
        # pieces of the first step that are drafted and read
        (
            [
                synthetic.branch("draft", 0, 0.0, 0.3, "rejected", 9),
                synthetic.branch("target", 0, 0.3, 1.0, "corrected", 1),
                synthetic.branch("draft", 0, 1.0, 1.2, "accepted", 9),
                synthetic.branch("target", 0, 1.2, 2.0, "accepted", 1),
            ],
            [made(0, "draft", "accepted", 2.0)],
            {"draft": 0.5, "target": 1.5},
        ),
        (
            [WAITED],
            [made(0, "target", "written", 2.1)],
            {"target": 1.0, "queue": 0.4, "prefill": 0.5, "controller": 0.2},
        ),
    ],
    ids=[
        "a draft that all wait for",
        "after a late draft",
        "pieces",
        "a runtime that tells its waits",
    ],
)
def test_what_an_answer_waited_for(branches, steps, expected):
    parts = accounting.parts(answer(steps, branches, steps[-1]["seconds"]))
    assert {part: round(seconds, 6) for part, seconds in parts.items() if seconds} == expected


def test_what_a_runtime_says_of_its_waits_is_read_and_recorded():
    meta = {"queue_time": 0.25, "forward_entry_time": 1000.5, "prefill_finished_time": 1000.75}
    assert waits(meta) == (0.25, 0.25)
    assert waits({}) == waits({"queue_time": None, "forward_entry_time": 5.0}) == (None, None)
    assert waits({"queue_time": True, "forward_entry_time": 9.0, "prefill_finished_time": 8.0}) == (
        None,
        None,
    )
    known, unknown = Branch("target", 0, queued=0.25, prefill=0.0), Branch("target", 0)
    assert {"queued": 0.25, "prefill": 0.0}.items() <= of_branch(known).items()
    assert not {"queued", "prefill"} & of_branch(unknown).keys()


def test_an_answer_without_a_step_has_no_path():
    assert accounting.critical_path(answer([], [], 0.0)) == []
