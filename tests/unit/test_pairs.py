"""Both versions of the steps of a run, in the columns that TRL's trainers read."""

import json

import datasets
import pytest

from lr_sglang.results import pairs
from tests import synthetic
from tests.called import called
from tests.synthetic import Truth, verdict, write

ASKED = "How many?\nBox it."


def step(text, target=None, drafts=(), verdicts=(), ending="delimiter", source=""):
    source = source or ("target" if target is None else "draft")
    return {
        "text": text,
        "source": source,
        "target_text": text if source == "target" else target,
        "draft_texts": list(drafts),
        "verdicts": list(verdicts),
        "ending": ending,
        "outcome": "accepted" if source == "draft" else "corrected",
        "seconds": 1.0,
        "tokens": 5,
    }


def record(*steps, mode="lookahead", sample=0, **more):
    (made,) = synthetic.run(Truth(), 1, 1, modes=("lookahead",))
    made["config"]["prompt_suffix"] = "Box it."
    named = {"question": "How many?", "question_id": "q", "sample": sample, "mode": mode}
    return made | named | {"steps": list(steps), "branches": []} | more


AGREED = step("Two.\n\n", "2.\n\n", ["Two.\n\n"], [verdict(True)])
SAME = step("Three.\n\n", "Three.\n\n", ["Three.\n\n"], [verdict(True, "identical")])
REFUSED = step("Four.\n\n", None, ["Five.\n\n"], [verdict(False)])
LAST = step("So 9.", None, ["So 8.\n\n"], [verdict(False, "ending")], "end of sequence")
LATE = step("Six.\n\n", None, [None], [verdict(False, "late")])
ALONE = step("Seven.\n\n")
CUT = step("And then", None, ["And"], [verdict(False)], "token cap")


def exported(folder, *records):
    run = write(folder, records)
    result = called("report", run, "--export", "pairs")
    files = {path.name: path for path in run.glob("*-*.jsonl")}
    assert sorted(result.stdout.split()) == sorted(map(str, files.values()))
    return files, result.stderr


def loaded(path, cache):
    return datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(cache)
    ).to_list()


@pytest.fixture
def found(tmp_path):
    files, said = exported(tmp_path / "run", record(AGREED, SAME, REFUSED, LATE, ALONE, CUT, LAST))
    rows = {name.partition("-")[0]: loaded(path, tmp_path) for name, path in files.items()}
    return rows, " ".join(said.split())


def test_versions_that_differ_are_rows_of_preferences(found):
    rows, said = found
    asked = [{"role": "user", "content": ASKED}]
    assert [row["prompt"] for row in rows["pairs"]] == [asked, asked]
    refused, last = rows["pairs"]
    prefix = "Two.\n\nThree.\n\n"
    assert refused["chosen"] == [{"role": "assistant", "content": prefix + "Four.\n\n"}]
    assert refused["rejected"] == [{"role": "assistant", "content": prefix + "Five.\n\n"}]
    assert (refused["prefix"], refused["step"], refused["by"]) == (len(prefix), 2, "judge")
    assert (last["chosen_ends"], last["rejected_ends"], last["by"]) == (True, False, "ending")
    assert "lookahead: 2 pairs that differ, 6 steps" in said


def test_the_targets_version_of_every_whole_step_is_a_row_of_completions(found):
    rows, _ = found
    steps = [row["completion"][0]["content"][row["prefix"] :] for row in rows["sft"]]
    assert steps == ["2.\n\n", "Three.\n\n", "Four.\n\n", "Six.\n\n", "Seven.\n\n", "So 9."]
    assert [row["verdict"] for row in rows["sft"]] == [
        *("accepted", "accepted", "rejected", "", "", "rejected")
    ]
    after = rows["sft"][1]["completion"][0]["content"]
    assert after == "Two.\n\nThree.\n\n", "the prefix is the answer's, with what was accepted"


def test_what_has_no_second_version_says_so(found):
    rows, said = found
    alone = [row["alone"] for row in rows["sft"]]
    assert alone == ["", "", "", "the draft was late", "the target wrote alone", ""]
    assert "without a second version: 1 the draft was late, 1 the target wrote alone" in said


@pytest.mark.parametrize("by", ["reading", "exact"])
def test_steps_that_were_read_or_fed_are_no_pairs(tmp_path, by):
    read = step("Four.\n\n", None, ["Five.\n\n"], [verdict(False, by)])
    files, said = exported(tmp_path / "run", record(read, mode="lossless"))
    assert [*files] == ["sft-lossless.jsonl"]
    (row,) = loaded(files["sft-lossless.jsonl"], tmp_path)
    assert row["alone"] == "read or fed" and "1 read or fed" in said


def test_the_exact_conclusion_of_a_judged_answer_is_no_pair(tmp_path):
    files, said = exported(tmp_path / "run", record(REFUSED, REFUSED | {"after_thinking": True}))
    assert [row["step"] for row in loaded(files["pairs-lookahead.jsonl"], tmp_path)] == [0]
    assert "1 read or fed" in said


def test_every_alternative_is_a_pair_and_the_targets_version_one_row(tmp_path):
    wide = step("Four.\n\n", None, ["Five.\n\n", "Six.\n\n"], [verdict(False), verdict(False)])
    files, _ = exported(tmp_path / "run", record(wide))
    counts = {name: len(loaded(path, tmp_path)) for name, path in files.items()}
    assert counts == {"pairs-lookahead.jsonl": 2, "sft-lookahead.jsonl": 1}


def test_each_mode_has_files_of_its_own(tmp_path):
    other = record(REFUSED, mode="lookahead+sd")
    files, _ = exported(tmp_path / "run", record(REFUSED), other, record(ALONE, sample=1))
    assert sorted(files) == sorted(
        f"{name}-{mode}.jsonl"
        for name in ("pairs", "sft")
        for mode in ("lookahead", "lookahead+sd")
    )
    assert len(loaded(files["sft-lookahead.jsonl"], tmp_path)) == 2


@pytest.mark.parametrize("more", [{"program": {"generations": []}}, {"error": {"message": "gone"}}])
def test_a_run_without_steps_to_learn_from_is_refused(tmp_path, more):
    run = write(tmp_path / "run", [record(REFUSED, **more)])
    said = " ".join(called("report", run, "--export", "pairs", code=1).output.split())
    assert "no steps to train a draft with" in said and not [*run.glob("*-*.jsonl")]


def test_rows_of_a_real_run_go_back_to_their_answers(tmp_path):
    records = synthetic.run(Truth(alpha=0.5), 3, 1, modes=("lookahead",))
    for one in records:
        for row in pairs.pair_rows(one):
            assert one["text"].startswith(row["prefix"])
    assert json.dumps([pairs.pair(row) for one in records for row in pairs.pair_rows(one)])
