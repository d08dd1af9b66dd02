"""When a cheap verifier may decide alone, from made-up records; and the command."""

import json

import pytest
from click.testing import CliRunner

from lr_sglang import verifier_names
from lr_sglang.cli import cli
from lr_sglang.errors import RecordError
from lr_sglang.results.calibration import calibrate, thresholds

CASCADE = "cascade:likelihood:min,judge"


def verdict(accepted, *scores, by="judge", failed=False):
    earlier = [{"accepted": False, "by": "likelihood", "score": score} for score in scores]
    return {"accepted": accepted, "by": by, "score": None, "failed": failed, "earlier": earlier}


def record(verdicts, verifier=CASCADE, texts=("1 + 1 = 2", "so 1 + 1 = 2")):
    steps = [{"target_text": texts[0], "draft_texts": [texts[1]], "verdicts": [one]} for one in verdicts]
    return {
        "schema": 1,
        "question_id": "q",
        "sample": 0,
        "mode": "lookahead",
        "config": {"lookahead": {"verifier": verifier}},
        "steps": steps,
    }


def test_thresholds_decide_as_much_as_the_precision_allows():
    scored = [(n / 100, n >= 40) for n in range(100)] + [(0.6, False)]
    reject, accept = thresholds(scored, 1.0)
    assert (reject, accept) == (pytest.approx(0.40), pytest.approx(0.61))
    _, accept = thresholds(scored, 0.98)
    assert accept == pytest.approx(0.40)


@pytest.mark.parametrize(
    "scored",
    [[], [(1.0, True)] * 19, [(0.5, n % 2 == 0) for n in range(100)], [(n / 100, n % 2 == 0) for n in range(100)]],
    ids=["none", "few", "one score", "no relation"],
)
def test_what_is_not_precise_enough_decides_nothing(scored):
    assert thresholds(scored, 0.95) == (None, None)


def test_a_threshold_is_not_lowered_to_let_wrong_ones_in():
    scored = [(2.0, True)] * 100 + [(1.0, False)] * 2
    assert thresholds(scored, 0.95) == (None, 2.0)


def test_a_later_stage_is_calibrated_on_what_an_earlier_one_left():
    sure = [verdict(True, 0.9, 0.1)] * 30 + [verdict(False, 0.1, 0.1)] * 30
    unsure = [verdict(True, 0.5, 0.8)] * 30 + [verdict(False, 0.5, 0.2)] * 30
    found = calibrate([record(sure + unsure, "cascade:likelihood:min,score,judge")], 1.0)
    first, second = found.stages
    assert (first.pairs, first.accepted, first.rejected, second.pairs) == (120, 30, 30, 60)
    assert (second.stage.accept_above, second.accepted, second.rejected) == (0.8, 30, 30)
    assert found.last == "judge"


def test_what_no_verifier_decided_is_left_out():
    odd = [verdict(False, by="late"), verdict(False, by="guard"), verdict(False, 0.5, failed=True), None]
    found = calibrate([record([*odd, *[verdict(True, 0.9)] * 25])], 0.9)
    assert found.stages[0].pairs == 25


def test_the_truth_may_be_another_than_the_last_stage():
    records = [record([verdict(False, 0.9)] * 25)]
    assert calibrate(records, 0.9).stages[0].accepted == 0
    assert calibrate(records, 0.9, lambda target, draft: True).stages[0].accepted == 25


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "of no cascade"),
        ([record([verdict(True)], "judge")], "of no cascade"),
        ([record([verdict(True, 1.0)]), record([verdict(True, 1.0)], "cascade:score,judge")], "2 different cascades"),
        ([record([verdict(True)])], "no pair that every stage was asked about"),
    ],
)
def test_records_of_something_else_are_refused(records, message):
    with pytest.raises(RecordError, match=message):
        calibrate(records, 0.9)


def test_the_command_writes_what_a_cascade_reads(tmp_path):
    run, path = tmp_path / "run", tmp_path / "c.json"
    run.mkdir()
    verdicts = [verdict(True, -0.5)] * 30 + [verdict(False, -8.0)] * 30
    (run / "records.jsonl").write_text(json.dumps(record(verdicts)) + "\n")
    result = CliRunner().invoke(cli, ["calibrate", str(run), "--precision", "0.98", "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert "accepted where the score is >= -0.5: 30, 30 rightly" in result.output
    stage, last = verifier_names.stages(str(path))
    assert (stage.verifier, stage.accept_above, stage.reject_below) == ("likelihood:min", -0.5, -0.5)
    assert last.verifier == "judge"
    shown = CliRunner().invoke(cli, ["calibrate", str(run), "--reference", "pocket", "--json"])
    assert json.loads(shown.output)["stages"][0]["accepted"] == 60


def test_a_folder_without_records_is_named(tmp_path):
    result = CliRunner().invoke(cli, ["calibrate", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert "cannot be read" in result.output
