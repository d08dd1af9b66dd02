"""When a cheap verifier may decide alone, from made-up records; and the command."""

import json
import random

import pytest
from click.testing import CliRunner

from lr_sglang.algorithm.policy import Calibration, RunStatistics
from lr_sglang.api.configuration import Settings
from lr_sglang.api.runner import Runner
from lr_sglang.cli import cli
from lr_sglang.config import Lookahead
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.results.calibration import calibrate, confidence, thresholds
from lr_sglang.simulated.model import Model
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles
from lr_sglang.verifiers import verifier_registry

CASCADE = "cascade:likelihood:min,judge"


def verdict(accepted, *scores, by="judge", failed=False):
    earlier = [{"accepted": False, "by": "likelihood", "score": score} for score in scores]
    return {"accepted": accepted, "by": by, "score": None, "failed": failed, "earlier": earlier}


def record(verdicts, verifier=CASCADE, texts=("1 + 1 = 2", "so 1 + 1 = 2")):
    steps = [
        {"target_text": texts[0], "draft_texts": [texts[1]], "verdicts": [one]} for one in verdicts
    ]
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
    [
        [],
        [(1.0, True)] * 19,
        [(0.5, n % 2 == 0) for n in range(100)],
        [(n / 100, n % 2 == 0) for n in range(100)],
    ],
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
    assert (first["pairs"], first["accepted"], first["rejected"], second["pairs"]) == (
        120,
        30,
        30,
        60,
    )
    assert (second["accept_above"], second["accepted"], second["rejected"]) == (0.8, 30, 30)
    assert found.last == "judge"


def test_what_no_verifier_decided_is_left_out():
    odd = [
        verdict(False, by="late"),
        verdict(False, by="guard"),
        verdict(False, 0.5, failed=True),
        None,
    ]
    found = calibrate([record([*odd, *[verdict(True, 0.9)] * 25])], 0.9)
    assert found.stages[0]["pairs"] == 25


def test_the_truth_may_be_another_than_the_last_stage():
    records = [record([verdict(False, 0.9)] * 25)]
    assert calibrate(records, 0.9).stages[0]["accepted"] == 0
    assert calibrate(records, 0.9, lambda target, draft: True).stages[0]["accepted"] == 25


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "of no cascade"),
        ([record([verdict(True)], "judge")], "of no cascade"),
        (
            [record([verdict(True, 1.0)]), record([verdict(True, 1.0)], "cascade:score,judge")],
            "2 different cascades",
        ),
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
    result = CliRunner().invoke(
        cli, ["calibrate", str(run), "--precision", "0.98", "--output", str(path)]
    )
    assert result.exit_code == 0, result.output
    assert "accepted where the score is >= -0.5: 30, 30 rightly" in result.output
    stage, last = verifier_registry.stages(str(path))
    assert (stage.verifier, stage.accept_above, stage.reject_below) == (
        "likelihood:min",
        -0.5,
        -0.5,
    )
    assert last.verifier == "judge"
    shown = CliRunner().invoke(cli, ["calibrate", str(run), "--reference", "pocket", "--json"])
    assert json.loads(shown.output)["stages"][0]["accepted"] == 60


def sure_records(pairs, verifier="judge"):
    made = record([verdict(accepted) for _, accepted in pairs], verifier)
    for step, (sure, _) in zip(made["steps"], pairs, strict=True):
        step["confidences"] = [sure]
    return [made]


def test_the_drafts_confidence_is_calibrated_from_records():
    rng = random.Random(0)
    drawn = [rng.random() < 0.6 for _ in range(3000)]
    pairs = [
        (rng.gauss(-0.4 if yes else -0.8, 0.336), yes) for yes in drawn
    ]  # 0.4 / 0.336 apart: an AUC of 0.8
    found = confidence(sure_records(pairs))
    assert found.auc == pytest.approx(0.8, abs=0.02)
    assert found.accepted == sum(drawn) and found.curve.samples == 3000
    assert found.curve.chance(-0.2) > 0.8 > 0.4 > found.curve.chance(-1.0)


@pytest.mark.parametrize(
    ("pairs", "auc"), [([(-0.5, True)] * 30, None), ([(-0.5, True), (-0.5, False)] * 15, 0.5)]
)
def test_a_confidence_that_tells_nothing(pairs, auc):
    found = confidence(sure_records(pairs))
    assert found.auc == auc and 0 < found.curve.chance(-0.5) < 1
    assert confidence(sure_records(pairs[:19])) is None


def test_a_file_for_the_gate(tmp_path):
    run, path = tmp_path / "run", tmp_path / "g.json"
    run.mkdir()
    records = sure_records([(-0.2, True)] * 40 + [(-0.9, False)] * 40)
    (run / "records.jsonl").write_text(json.dumps(records[0]) + "\n")
    result = CliRunner().invoke(cli, ["calibrate", str(run), "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert "80 verdicts, 50 % accepted, AUC 1.00" in result.output
    assert f"--calibration {path}" in result.output and "cascade" not in result.output
    known = Calibration.read(str(path))
    assert known.chance(-0.2) > 0.8 > 0.2 > known.chance(-0.9) and known.samples == 80
    roles = simulated_roles(Simulation(Model()))
    runner = Runner(roles, Settings(lookahead=Lookahead(gate=0.1, calibration=str(path))))
    assert runner._experience.calibration == known
    with pytest.raises(ConfigError, match="no parameters of a cascade"):
        verifier_registry.stages(str(path))
    shown = CliRunner().invoke(cli, ["calibrate", str(run), "--json"])
    assert json.loads(shown.output)["gate"]["auc"] == 1.0


def test_one_file_for_a_cascade_and_the_gate(tmp_path):
    pairs = [(-0.2, True)] * 30 + [(-0.9, False)] * 30
    (made,) = sure_records(pairs, CASCADE)
    for step, (sure, accepted) in zip(made["steps"], pairs, strict=True):
        step["verdicts"] = [verdict(accepted, 10 * sure)]
    run, path = tmp_path / "run", tmp_path / "both.json"
    run.mkdir()
    (run / "records.jsonl").write_text(json.dumps(made) + "\n")
    assert CliRunner().invoke(cli, ["calibrate", str(run), "--output", str(path)]).exit_code == 0
    assert Calibration.read(str(path)).samples == 60
    assert verifier_registry.stages(str(path))[0].accept_above == -2.0


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"gate": 3}', '{"gate": {"level": "x"}}', '{"stages": [], "last": "judge"}'],
)
def test_a_file_without_a_calibration_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.json"):
        Calibration.read(str(path))
    with pytest.raises(ConfigError, match="nowhere"):
        Calibration.read(str(tmp_path / "nowhere.json"))


def test_a_calibration_is_for_a_gate():
    assert Lookahead(gate=0.1, calibration="c.json").calibration == "c.json"
    with pytest.raises(ConfigError, match="none is given"):
        Lookahead(calibration="c.json")


def test_a_run_goes_by_what_is_known_until_it_knows_enough_itself():
    known = Calibration(0.0, 5.0, -0.5, 300)
    experience = RunStatistics(calibration=known)
    for n in range(99):
        experience._learn(-0.5, n % 2 == 0)
    assert experience.calibration is known
    experience._learn(-0.5, True)
    assert experience.calibration.samples == 100


def test_a_folder_without_records_is_named(tmp_path):
    result = CliRunner().invoke(cli, ["calibrate", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert "cannot be read" in result.output


@pytest.mark.parametrize(
    "command", [["calibrate"], ["bench", "simulated", "--trace"], ["plan", "--records"]]
)
def test_a_record_that_lacks_a_field_is_named(tmp_path, command):
    (tmp_path / "records.jsonl").write_text(
        '{"schema": 1, "question_id": "a", "sample": 0, "mode": "lookahead"}\n'
    )
    result = CliRunner().invoke(cli, [*command, str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path}: a record lacks '" in result.output
