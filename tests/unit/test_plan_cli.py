"""``lr-sglang plan``: what it finds, what it measures in a run's records, what it draws, and how it
fails.
"""

import json
from pathlib import Path

import pytest

from lr_sglang.theory.judged import Case
from tests.called import called
from tests.synthetic import verdict, write

PAPER = ("--alpha", "0.63", "--c1", "0.1")


@pytest.fixture(autouse=True)
def wide(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def call(*arguments, code=0):
    return called("plan", *arguments, code=code)


def found(*arguments):
    return json.loads(call(*arguments, "--json").stdout)


def branch(role, outcome, seconds, generated=20, **more):
    return {
        "role": role,
        "outcome": outcome,
        "started": 1.0,
        "ended": 1.0 + seconds,
        "generated": generated,
    } | {
        "error": "",
        **more,
    }


def lookahead(name="a", mode="lookahead", **more):
    """Three steps, of which two are drafted: a target step takes 1.5 s, a draft step 0.3 s, a
    verdict 0.2 s.
    """
    steps = [
        {"verdicts": [verdict(True)]},
        {"verdicts": [verdict(True, "identical", 0.0)]},
        {"verdicts": [verdict(False)]},
    ]
    branches = [
        branch("draft", "accepted", 0.2),
        branch("draft", "accepted", 0.4),
        branch("draft", "rejected", 0.3),
        branch("draft", "cancelled", 9.0),
        branch("draft", "rejected", 9.0, error="gone"),
        branch("target", "accepted", 1.0),
        branch("target", "accepted", 1.5),
        branch("target", "corrected", 2.0),
        branch("target", "cancelled", 9.0),
        branch("judge", "accepted", 0.3),
        {**branch("target", "bonus", 9.0), "ended": None},
    ]
    return {
        "schema": 1,
        "question_id": name,
        "sample": 0,
        "mode": mode,
        "question": "how many?",
        "error": None,
        "judged": 3,
        "accepted": 2,
        "seconds": 3.0,
        "tokens": {"used": 60},
        "steps": steps,
        "branches": branches,
        "config": {"lookahead": {"schedule": "async", "depth": 4, "width": 1}},
    } | more


def autoregressive(name="a", **more):
    return lookahead(
        name, "autoregressive", seconds=4.0, steps=[{"verdicts": []}] * 3, branches=[], **more
    )


def folder(*records):
    return write(Path("run"), records)


def test_a_run_is_measured():
    failed = lookahead(
        "c", error={"kind": "RuntimeDown", "message": "", "retryable": True}, judged=90
    )
    said = found("--records", folder(autoregressive(), lookahead(), lookahead("b"), failed))
    measured, case = said["measured"], said["case"]
    assert measured["step_seconds"] == pytest.approx(1.5)
    assert (measured["samples"], measured["judged"], measured["depth"], measured["steps"]) == (
        2,
        6,
        4,
        3,
    )
    expected = {"alpha": 2 / 3, "c1": 0.3 / 1.5, "judge": 0.2 / 1.5}
    assert {name: case[name] for name in expected} == pytest.approx(expected)
    assert case["slowdown"] == measured["slowdown"] == pytest.approx((4.5 / 60) / (4 / 60))
    assert measured["speedup"] == pytest.approx(4 / 3)
    assert case["steps"] == 3
    expected = Case(2 / 3, 0.2, 0.2 / 1.5, 4.5 / 4, steps=3).speedup("async", 4)
    assert said["expected_of_the_run"] == pytest.approx(expected)


def test_of_a_run_that_was_read_the_mode_beside_it_has_the_times():
    said = found("--records", folder(autoregressive(), lookahead(read_tokens=50, agreed_tokens=40)))
    assert said["measured"]["step_seconds"] == pytest.approx(4 / 3)  # 20 tokens at 15 a second
    assert said["case"]["c1"] == pytest.approx(0.3 / (4 / 3))
    assert said["measured"]["agreement"] == 0.8 and said["measured"]["slowdown"] is None
    told = call("--records", "run").stdout
    assert "0.80 of the tokens were its own; lossless by reading: 1.64x, 8 tokens" in told


def test_what_is_given_goes_before_what_was_measured():
    given = ("--alpha", 0.5, "--c1", 0.1, "--judge", 0)
    case = found("--records", folder(autoregressive(), lookahead()), *given)["case"]
    assert (case["alpha"], case["c1"], case["judge"], case["steps"]) == (0.5, 0.1, 0.0, 3)


def test_late_and_failed_drafts_have_no_verdict_that_took_time():
    steps = [
        {"verdicts": [verdict(False, "late", 0.0)]},
        {"verdicts": [verdict(False, failed=True), None]},
    ]
    steps += [{"verdicts": [verdict(True, seconds=0.6)]}]
    assert found("--records", folder(lookahead(steps=steps)))["case"]["judge"] == pytest.approx(
        0.6 / 1.5
    )


def test_a_benchmark_of_one_setting_is_measured_by_its_folder():
    write(Path("bench/sampled"), [autoregressive(), lookahead()])
    assert found("--records", "bench")["measured"]["samples"] == 1
    write(Path("bench/greedy"), [lookahead()])
    assert "give one: bench/greedy, bench/sampled" in call("--records", "bench", code=2).stderr


def test_of_several_modes_one_is_measured():
    drawn = branch("target", "accepted", 3.0)
    layered = lookahead("a", "lookahead+sd", branches=[drawn, branch("draft", "accepted", 0.3)])
    where = folder(lookahead(), layered, {**autoregressive(), "mode": "sd"})
    assert found("--records", where)["measured"]["mode"] == "lookahead"


def test_a_run_with_alternatives_tells_the_acceptance_of_a_step_at_its_width():
    wide = lookahead(config={"lookahead": {"schedule": "async", "depth": 4, "width": 2}})
    said = found("--records", folder(wide))
    assert said["case"]["alpha"] == pytest.approx(2 / 3)
    assert "-o lookahead.width=2" in said["run"]
    assert len(said["rows"]) == 4, "the tree of a greater depth might be refused"


SYNC = {"lookahead": {"schedule": "sync", "depth": 4, "width": 1}}


@pytest.mark.parametrize(
    ("records", "code", "message"),
    [
        ([], 2, "no sample of mode lookahead"),
        ([autoregressive()], 2, "no sample of mode lookahead"),
        ([lookahead(branches=[])], 2, "no target step"),
        ([lookahead(read_tokens=9)], 2, "no target step"),
        ([lookahead(steps=[])], 2, "no verdict"),
        ([lookahead(), lookahead("b", config=SYNC)], 2, "different schedules"),
        ([lookahead(config={})], 1, "lacks 'lookahead'"),
        ([lookahead(schema=99)], 1, "later release"),
    ],
)
def test_records_that_tell_nothing(records, code, message):
    result = call("--records", folder(*records), code=code)
    assert message in result.stderr
    assert "Hint: " in result.stderr


# -- what it says


def test_the_papers_numbers():
    said = found(*PAPER)
    by_depth = {row["depth"]: row for row in said["rows"]}
    assert by_depth[6]["speedup"]["async"] == pytest.approx(2.26, abs=0.005)
    assert by_depth[16]["speedup"]["async"] == pytest.approx(2.31, abs=0.005)
    assert (by_depth[9]["formula"], by_depth[10]["formula"]) == ("S2", "S1")
    assert by_depth[16]["steps_at_once"] == 10
    assert said["bound"] == pytest.approx(2.70, abs=0.005)
    best = said["best"]["async"]
    assert best["depth"] < 10 and best["speedup"] >= 0.98 * by_depth[16]["speedup"]["async"]
    assert said["run"] == f"--mode lookahead --schedule async --depth {best['depth']}"


def test_a_token_layer_multiplies_and_leaves_the_judge_as_slow():
    said = found(*PAPER, "--judge", "0.25", "--layer-speed", 2)
    assert said["case"]["judge"] == 0.5
    assert said["rows"] == found(*PAPER, "--judge", "0.5")["rows"]
    best = max(one["speedup"] for one in said["best"].values())
    text = " ".join(call(*PAPER, "--judge", "0.25", "--layer-speed", 2).output.split())
    assert f"{best:.2f}x over the token layer alone, {2 * best:.2f}x over plain decoding" in text


@pytest.mark.parametrize(
    ("speeds", "c1", "ceiling"),
    [("1", 0.1, 2.31), ("target=4.3", 0.43, 1.56), ("target=4.3,draft=2", 0.215, 1.98)],
)
def test_a_layer_on_the_target_alone_takes_from_lookahead(speeds, c1, ceiling):
    said = found("--alpha", 0.63, "--c1", 0.1, "--layer-speed", speeds)
    assert said["case"]["c1"] == pytest.approx(c1)
    assert said["rows"][-1]["speedup"]["async"] == pytest.approx(ceiling, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (("--alpha", 0.1, "--c1", 0.9, "--judge", 1), "--mode autoregressive"),
        (("--alpha", 0.1, "--c1", 0.9, "--judge", 1, "--layer-speed", 2), "--mode sd"),
        ((*PAPER, "--layer-speed", 1.5), "--mode lookahead+sd --schedule async"),
        ((*PAPER, "--depth", 2), "--depth 2"),
    ],
)
def test_the_plan_is_a_command(arguments, plan):
    assert plan in found(*arguments)["run"]


# -- what it refuses


@pytest.mark.parametrize(
    "case",
    [
        ("--alpha", "0.63", "--c1", "0.1", "--judge", "0.05"),
        ("--alpha", "0.8", "--c1", "0.05"),
        ("--alpha", "0.9", "--c1", "0.05", "--depth", "3"),
        ("--alpha", "0.1", "--c1", "0.9"),
    ],
)
def test_where_another_depth_of_the_table_is_faster_the_line_has_the_rule(case):
    rows, said = found(*case)["rows"], call(*case).stdout
    for schedule, best in found(*case)["best"].items():
        (line,) = [one for one in said.splitlines() if one.startswith(f"best {schedule}: ")]
        fastest = max(1.0, *(row["speedup"][schedule] for row in rows))
        told = f"{best['speedup']:.2f}" == f"{fastest:.2f}"
        assert ("the least depth within 2% of the fastest" in line) is not told
        assert told or f"{fastest:.2f}x at depth" in line
