"""Reading runs, the tables and plots of a report, and the command."""

import copy
import csv
import io
import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from lr_sglang.errors import RecordError
from lr_sglang.results import charts, collection, report, store, timeline
from tests import synthetic
from tests.synthetic import Truth

MODES = ("autoregressive", "sd", "lookahead", "lookahead+sd")


def write(folder, records, **about):
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "records.jsonl").write_text(lines, encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"schema": 1, "config": {}, **about}))
    return folder


def reference(folder, count=3, speed=10.0, **changes):
    """A folder as the paper's own code writes it."""
    folder.mkdir(parents=True)
    for n in range(count):
        table = {
            "question_id": n,
            "question": f"What is {n} + {n}?",
            "draft_prompt": "",
            "target_prompt": "",
            "generation_tokens": list(range(20)),
            "generation_text": f"Hmm.</think>\n\n\\boxed{{{2 * n}}}",
            "full_text": "",
            "full_tokens": [],
            "gold": 2 * n if n else 1,
            "time_taken": 20 / speed,
            "speed": speed,
            "draft_config": {"name": "qwen3"},
            "target_config": {"name": "qwen3", "temperature": 0.6, "judge_model": "Qwen2.5-7B"},
            **changes,
        }
        (folder / f"{n}.json").write_text(json.dumps(table))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tasks in four modes."""
    records = [
        *synthetic.run(Truth(alpha=0.7, token_layer=1.5), 8, 2, modes=MODES, task="gsm8k"),
        *synthetic.run(Truth(alpha=0.4, token_layer=1.5), 8, 2, modes=MODES, task="aime24"),
    ]
    return write(tmp_path_factory.mktemp("run") / "both", records)


def made(*folders, margin=0.02):
    return report.make(collection.read(folders), margin)


@pytest.fixture(scope="module")
def whole(run):
    """The report of the two tasks; it takes a second to make."""
    return made(run)


def table(found, title):
    return next(one for one in found.tables if one.title.startswith(title))


def invoke(*words):
    return CliRunner().invoke(cli, ["report", *map(str, words)])


# -- reading


def test_records_are_sorted_by_task_mode_and_setting(tmp_path):
    records = [
        r for depth in (2, 4) for r in synthetic.run(Truth(depth=depth), 3, modes=("lookahead",))
    ]
    found = collection.read([write(tmp_path / "a", records)])
    assert [(g.mode, g.label, len(g.records)) for g in found.groups] == [
        ("lookahead", "depth 2", 6),
        ("lookahead", "depth 4", 6),
    ]
    assert [g.value("depth") for g in found.groups] == [2, 4]


def test_folders_are_merged_and_paired(tmp_path):
    """A baseline in one folder and lookahead in another are compared; the same samples of two
    folders both count.
    """
    base = write(tmp_path / "a", synthetic.run(Truth(), 5, 1, modes=("autoregressive",)))
    first = write(tmp_path / "b", synthetic.run(Truth(), 5, 1, modes=("lookahead",)))
    second = write(tmp_path / "c", synthetic.run(Truth(), 5, 1, seed=1, modes=("lookahead",)))
    one, two = made(base, first), made(base, first, second)
    assert one.measures[1].speed.seconds.samples == 5
    assert len(two.measures[1].group.records) == 10
    assert two.measures[1].speed.seconds.samples == 5  # the baseline has one of each
    assert made(tmp_path).measures[1].speed == two.measures[1].speed


def test_seeds_are_pooled_and_other_sampling_is_not_compared(tmp_path):
    records = synthetic.run(Truth(), 4, 1)
    for number, record in enumerate(records):
        record["config"]["sampling"]["seed"] = number
    pooled = collection.read([write(tmp_path / "a", records)])
    assert len(pooled.groups) == 2
    for record in records:
        if record["mode"] == "lookahead":
            record["config"]["sampling"]["temperature"] = 0.0
    other = collection.read([write(tmp_path / "b", records)])
    assert other.base(other.groups[1]) is None


def test_concurrency_comes_from_the_record_or_the_run(tmp_path):
    records = synthetic.run(Truth(), 2, 1, modes=("lookahead",))
    assert (
        collection.read([write(tmp_path / "a", records, concurrency=4)]).groups[0].concurrency == 4
    )
    both = [{**record, "concurrency": n} for record in records for n in (1, 8)]
    found = collection.read([write(tmp_path / "b", both)])
    assert [(g.concurrency, g.label) for g in found.groups] == [(1, "1 at once"), (8, "8 at once")]


def test_a_record_that_was_made_again_counts_once(tmp_path):
    records = synthetic.run(Truth(), 2, 1, modes=("lookahead",))
    failed = {**records[0], "error": {"message": "late", "retryable": True}, "correct": False}
    found = collection.read([write(tmp_path / "a", [failed, *records])])
    assert len(found.records) == 2 and not any(r["error"] for r in found.records)


def test_tasks_are_told_apart_by_all_of_their_names(tmp_path):
    """Questions that were asked by themselves, and tasks of one file, may have a slash in them."""
    for number, task in enumerate(
        ("What is 3/4 of 8?", "What is 1/4 of 8?", "my/tasks.py:a", "my/tasks.py:b")
    ):
        write(tmp_path / str(number), synthetic.run(Truth(), 1, 1, modes=("lookahead",), task=task))
    assert [len(group.records) for group in collection.read([tmp_path]).groups] == [1] * 4


def test_a_run_that_is_at_work_is_read_so_far(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 2, 1))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "quest')
    found = collection.read([folder])
    assert len(found.records) == 4
    assert "cut off" in found.notes[0]


def test_a_file_that_is_replaced_or_written_while_it_is_read_is_not_cut_off(tmp_path, monkeypatch):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 2, 1))
    path, check = folder / store.RECORDS, store._check
    lines = path.read_bytes().splitlines(keepends=True)

    def meanwhile(made):
        monkeypatch.undo()
        with path.open("ab") as file:
            file.write(lines[-1])
        store.replace_file(path, lines[:1])  # as a run does at its end
        check(made)

    monkeypatch.setattr(store, "_check", meanwhile)
    found = collection.read([folder])
    assert (len(found.records), found.notes) == (len(lines), [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no record yet"),
        ("[]\n", "no record"),
        (
            json.dumps({**synthetic.run(Truth(), 1, 1)[0], "seconds": None}) + "\n",
            "line 1: this is no record",
        ),
        (
            '{"schema":1,"question_id":"a","sample":0,"mode":"lookahead"}\n',
            "has no seconds.* text, ",
        ),
    ],
)
def test_what_is_no_record_is_named(tmp_path, content, message):
    (tmp_path / "records.jsonl").write_text(content)
    with pytest.raises(RecordError, match=message):
        collection.read([tmp_path])


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(RecordError, match="there are no records in it"):
        collection.read([tmp_path])
    with pytest.raises(RecordError, match="no such folder"):
        collection.read([tmp_path / "absent"])
    with pytest.raises(RecordError, match="cannot be read: File name too long"):
        collection.read(["a" * 300])


# -- the reference's folders


def test_the_references_folders_are_read(tmp_path):
    slow = reference(tmp_path / "AIME_20251031_120000_123456")
    fast = reference(tmp_path / "AIME_20251031_130000_654321", speed=15.0)
    found = made(f"autoregressive={slow}", f"lookahead={fast}")
    base, ahead = found.measures
    assert (base.group.task, base.group.marks) == ("AIME", ("reference",))
    assert base.accuracy.value == pytest.approx(2 / 3)
    assert (base.rate_mean, base.tokens, base.thinks) == (pytest.approx(10), 20, 1)
    assert ahead.speed.tokens.value == pytest.approx(1.5)
    assert "records no steps" in found.warning
    assert (
        table(found, "Table 1").rows[0][0] == "target accuracy %"
    )  # though both are of one family
    row = table(found, "Per answer").rows[1]
    assert row[1:] == ["lookahead", "3", "15.00", "20.0", "1.00", "66.67"]


def test_the_references_mode_and_task_can_be_said(tmp_path):
    folder = reference(tmp_path / "some run", 1)
    assert [(g.task, g.mode) for g in collection.read([folder]).groups] == [("some run", "unknown")]
    assert [
        (g.task, g.mode) for g in collection.read([f"lookahead+sd@aime24={folder}"]).groups
    ] == [("aime24", "lookahead+sd")]
    with pytest.raises(RecordError, match="no mode 'fast'"):
        collection.read([f"fast={folder}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON file"),
        ("[1]", "it has no question"),
        ('{"question": "a", "generation_text": "b"}', "it has no time_taken"),
        ('{"question": "a", "generation_text": "b", "time_taken": "soon"}', "is no number"),
    ],
)
def test_a_damaged_file_of_the_reference_is_named(tmp_path, text, message):
    folder = reference(tmp_path / "a", 1)
    (folder / "7.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        collection.read([folder])


def test_a_reference_file_may_lack_what_is_not_needed(tmp_path):
    folder = reference(
        tmp_path / "a", 1, generation_tokens=None, gold=None, target_config=None, draft_config=7
    )
    (measures,) = made(folder).measures
    assert measures.tokens == 20  # by its speed
    assert measures.accuracy is None
    assert collection.read([folder]).models == ""


def test_nobody_knows_the_models_of_a_reference_folder(tmp_path):
    folder = reference(tmp_path / "a", 2, target_config=None, draft_config=None)
    found = table(made(f"autoregressive={folder}"), "Table 1")
    assert (found.title, found.rows[0][0]) == ("Table 1: models unknown", "target accuracy %")


# -- tables


def test_table_1_has_the_papers_shape(whole):
    found = table(whole, "Table 1")
    assert found.columns == ["", "gsm8k", "aime24"]
    assert [row[0] for row in found.rows] == [
        *("target accuracy %", "sd accuracy %", "sd speed-up"),
        *("lookahead accuracy %", "lookahead alpha", "lookahead speed-up"),
        *("lookahead+sd accuracy %", "lookahead+sd alpha", "lookahead+sd speed-up"),
    ]
    assert found.rows[2][1:] == ["1.50x", "1.50x"]
    assert "+-" in found.rows[0][1]


@pytest.mark.parametrize(("layer", "slower"), [("ngram", True), ("none", False)])
def test_a_lossless_group_is_held_against_the_same_token_layer(tmp_path, layer, slower):
    records = synthetic.run(
        Truth(token_layer=2.0), 6, 1, modes=("autoregressive", "sd", "lookahead")
    )
    for record in records:
        if record["mode"] == "lookahead":
            record["mode"] = record["config"]["mode"] = "lossless"
            record["config"]["runtimes"]["target"]["token_layer"] = {
                "algorithm": layer,
                "tokens": None,
            }
    report = made(write(tmp_path, records))
    (measured,) = [m.expected for m in report.measures if m.expected]
    (against,) = [m.speed for m in report.measures if m.group.mode == "lossless"]
    assert (measured.measured < 0.7 * against.tokens.value) == slower, (
        "the token layer alone is twice as fast"
    )


def test_the_program_of_all_runs_is_named(tmp_path):
    records = synthetic.run(Truth(), 3, 1)
    assert any(m.expected for m in made(write(tmp_path / "without", records)).measures)
    for record in records:
        record["config"]["program"] = "twice"
    report = made(write(tmp_path / "a", records))
    assert table(report, "Table 1").title.endswith("; program twice")
    assert not any(m.expected for m in report.measures), "the formulas are of one answer"
    plain = synthetic.run(Truth(), 3, 1, modes=("autoregressive",))
    ahead = [record for record in records if record["mode"] == "lookahead"]
    found = table(made(write(tmp_path / "b", [*ahead, *plain])), "Table 1")
    assert "program" not in found.title
    assert [row[0].split(":")[0] for row in found.rows] == [
        "target accuracy %",
        "lookahead (program twice)",
    ]


def test_a_draft_that_answers_alone_is_called_so(tmp_path):
    records = synthetic.run(Truth(), 3, 1)
    alone = synthetic.run(Truth(), 3, 1, modes=("autoregressive",))
    for record in alone:
        record["config"]["runtimes"]["target"]["model"] = "made-up:draft"
    found = table(made(write(tmp_path / "a", [*records, *alone])), "Table 1")
    names = [row[0] for row in found.rows]
    assert any(name.startswith("draft") for name in names) and any(
        name.startswith("target") for name in names
    )


def sized(tmp_path, target, **run):
    records = synthetic.run(Truth(alpha=0.75, token_layer=1.5), 8, 1, modes=MODES, **run)
    for one in records:
        one["config"]["runtimes"]["target"]["model"] = target
    return made(write(tmp_path / target.replace("/", "-"), records))


@pytest.mark.parametrize(
    ("target", "task", "papers"),
    [
        (
            "dummy:qwen3-32b",
            "pocket",
            "DeepSeek-R1-Distill, 1.5B for 32B, gsm8k 0.63 1.71x 1.39x 2.11x",
        ),
        (
            "pocket:target@qwen3-32b",
            "pocket",
            "DeepSeek-R1-Distill, 1.5B for 32B, gsm8k 0.63 1.71x 1.39x 2.11x",
        ),
        ("Qwen/Qwen3-32B", "gsm8k", "Qwen3, 1.7B for 32B, gsm8k 0.50 1.32x 1.32x 1.68x"),
    ],
)
def test_the_papers_row_stands_beside_a_target_of_its_size(tmp_path, target, task, papers):
    report = sized(tmp_path, target, task=task)
    found = report.tables[1]
    assert found.title == "Beside the paper's Table 1"
    assert found.columns == ["", "alpha", "lookahead", "sd", "lookahead+sd"]
    ours, theirs = found.rows
    speeds = {m.group.mode: f"{m.speed.tokens.value:.2f}x" for m in report.measures if m.speed}
    alpha = next(m.alpha.value for m in report.measures if m.group.mode == "lookahead")
    assert ours == [
        f"measured: {task}",
        f"{alpha:.2f}",
        *(speeds[mode] for mode in found.columns[2:]),
    ]
    assert " ".join(theirs) == f"the paper: {papers}"


def test_other_sizes_have_no_row_of_the_papers(tmp_path):
    assert not [one for one in sized(tmp_path, "Qwen/Qwen3-8B").tables if "Beside" in one.title]


def test_verifiers_and_widths_have_tables_when_they_vary(tmp_path, whole):
    assert not [one for one in whole.tables if one.title.startswith(("Table 2", "Table 3"))]
    records = []
    for verifier in ("judge", "embedding:0.95"):
        for width in (1, 2):
            for record in synthetic.run(Truth(), 3, 1, modes=("lookahead",)):
                record["config"]["lookahead"] |= {"verifier": verifier, "width": width}
                records.append(record)
    found = made(write(tmp_path / "a", records))
    assert table(found, "Table 2").columns == ["", "verifier judge", "verifier embedding:0.95"]
    assert table(found, "Table 3").columns == ["", "width 1", "width 2"]


def test_the_times_of_every_run_are_accounted_for(whole):
    for m in whole.measures:
        assert m.time["share"] == pytest.approx(1, abs=0.02)
    assert {row[-1] for row in table(whole, "Where the time went").rows} == {"100.0"}


def test_simulated_and_dummy_runs_are_marked_everywhere(tmp_path, whole):
    assert report.markdown(whole).count("**Simulated runtimes") == len(whole.tables)
    records = synthetic.run(Truth(), 3, 1)
    for record in records:
        record["versions"] = {}
        record["config"]["runtimes"]["target"]["model"] = "dummy:qwen3-32b"
    found = made(write(tmp_path / "a", records))
    assert found.to_dict()["marks"] == ["dummy weights"]
    assert "random weights" in invoke(tmp_path / "a").stdout
    real = [{**r, "versions": {}} for r in synthetic.run(Truth(), 3, 1)]
    assert made(write(tmp_path / "b", real)).warning == ""


def test_failed_answers_count_as_wrong_and_not_in_speed(tmp_path):
    records = synthetic.run(Truth(accuracy=1.0), 10, 1)
    for record in records:
        record["correct"] = True
    records[1] |= {
        "error": {"message": "late", "hint": "", "retryable": False},
        "correct": False,
        "seconds": 1e9,
    }
    _, ahead = made(write(tmp_path / "a", records)).measures
    assert (ahead.errors, ahead.accuracy.value) == (1, 0.9)
    assert ahead.speed.seconds.samples == 9 and ahead.seconds.value < 100


# -- formats


def test_json_has_every_figure_with_its_interval(run):
    found = json.loads(invoke(run, "--format", "json").stdout)
    assert (found["schema"], len(found["groups"])) == (1, 8)
    ahead = next(g for g in found["groups"] if (g["task"], g["mode"]) == ("gsm8k", "lookahead"))
    assert ahead["accuracy"].keys() == {"value", "low", "high", "samples", "questions"}
    assert ahead["difference"]["verdict"] in ("kept", "worse", "open")
    assert ahead["expected"]["paper"] > 1
    assert ahead["time"]["parts"]["judge"] > 0
    assert (ahead["samples"], ahead["questions"]) == (16, 8)


def test_csv_has_a_row_for_each_group(run):
    rows = list(csv.DictReader(io.StringIO(invoke(run, "--format", "csv").stdout)))
    assert len(rows) == 8
    assert float(rows[1]["speed.tokens.value"]) == pytest.approx(1.5, rel=0.01)
    assert rows[2]["runs.0.value"] and rows[2]["marks"] == "simulated"


def test_a_flag_of_a_server_may_have_several_values(tmp_path):
    records = synthetic.run(Truth(), 2, 1, modes=("autoregressive",))
    for record in records:
        record["config"]["runtimes"]["target"]["extra"] = {
            "cuda-graph-bs": [1, 2],
            "lora-paths": [],
        }
    (row,) = csv.DictReader(io.StringIO(report.as_csv(made(write(tmp_path / "a", records)))))
    assert row["settings.runtimes.target.extra.cuda-graph-bs"] == "1; 2"


def test_names_from_files_are_no_markup_and_no_formula(tmp_path):
    records = synthetic.run(Truth(), 2, 1, task="=a|b`<script>\x1b[31m$x$")
    folder = write(tmp_path / "a", records)
    text = invoke(folder, "--format", "markdown").stdout
    assert "<script>" not in text and "\\|" in text
    assert "'=a|b" in invoke(folder, "--format", "csv").stdout
    assert "\x1b" not in invoke(folder).stdout


def test_text_has_all_tables_and_no_broken_figure(run, whole):
    text = invoke(run).stdout
    for one in whole.tables:
        assert one.title[:40] in text
    assert "…" not in text
    assert whole.measures[2].group.name in text


def test_a_report_can_be_written_to_a_file(tmp_path, run):
    assert invoke(run, "--output", tmp_path / "r.md", "--format", "markdown").stdout == ""
    assert (tmp_path / "r.md").read_text().startswith("### Table 1")
    assert "--output" in invoke(run, "--output", tmp_path / "absent" / "r.md").output


# -- plots


def test_plots_are_drawn_as_png_and_svg(tmp_path, run):
    records = synthetic.run(Truth(depth=3), 4, 1, modes=MODES, task="gsm8k")
    for record in records:
        if record["mode"].endswith("sd"):
            for one in record["config"]["runtimes"].values():
                one["token_layer"]["tokens"] = 4
    records += [{**record, "concurrency": 4} for record in records]
    more = write(tmp_path / "more", records)
    formula = "$\\frac$_^{"  # what a model or a user wrote is shown as it is, and is no formula
    named = write(tmp_path / "named", synthetic.run(Truth(), 3, 1, task=formula))
    result = invoke(run, more, named, "--format", "csv", "--plots", tmp_path / "plots")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    kinds = ("speedup", "depth", "sd_tokens", "concurrency", "acceptance", "time", "timeline")
    assert names == {f"{kind}.{suffix}" for kind in kinds for suffix in ("png", "svg")}
    for kind in kinds:
        assert (tmp_path / "plots" / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
        svg = (tmp_path / "plots" / f"{kind}.svg").read_text()
        assert ET.fromstring(svg).tag.endswith("svg")
        assert "Simulated runtimes" in svg and formula in svg


def test_of_several_ways_to_draft_as_many_tokens_the_fastest_is_drawn(tmp_path):
    """A layer that was left its own number of tokens has no place on the axis."""
    for number, (tokens, depth, faster) in enumerate(
        [(None, 6, 1.1), (2, 3, 2.0), (2, 6, 1.2), (4, 6, 1.8)]
    ):
        found = synthetic.run(Truth(depth=depth, token_layer=faster), 3, 1, modes=MODES)
        for record in found:
            for runtime in record["config"]["runtimes"].values():
                if runtime["token_layer"]["algorithm"] != "none":
                    runtime["token_layer"]["tokens"] = tokens
        write(tmp_path / str(number), found)
    found = made(tmp_path)
    sd, ahead = (container.lines[0] for container in charts.sd_tokens(found).axes[0].containers)
    assert list(sd.get_xdata()) == list(ahead.get_xdata()) == [0, 2, 4]
    assert sd.get_ydata()[0] == 1
    groups = [
        m
        for m in found.measures
        if (m.group.mode, m.group.value("sd tokens")) == ("lookahead+sd", 2)
    ]
    assert len(groups) == 2 and ahead.get_ydata()[1] == max(m.speed.tokens.value for m in groups)


def test_branches_of_a_lane_do_not_overlap():
    (record,) = synthetic.run(Truth(), 1, 1, modes=("lookahead",))
    rows = timeline.lanes(record, "target")
    assert sum(map(len, rows)) == sum(b["role"] == "target" for b in record["branches"])
    for row in rows:
        assert all(a["ended"] <= b["started"] + 1e-5 for a, b in pairwise(row))


def test_the_picture_is_of_an_answer_like_the_others(tmp_path):
    """Not of one in which every draft was refused, nor of the lossless mode, which
    accepts little.
    """
    records = synthetic.run(Truth(alpha=0.6, steps=6), 8, 1, modes=("lookahead",))
    records.sort(key=lambda record: record["seconds"])
    records[4] |= {"accepted": 0, "alpha": 0.0}  # of middle time
    others = copy.deepcopy(records)
    for record in others:
        record["mode"] = record["config"]["mode"] = "lossless"
    write(tmp_path / "a", [*records, *others, *others])
    shown = timeline.typical(made(tmp_path))
    alpha = sum(record["accepted"] for record in records) / sum(
        record["judged"] for record in records
    )
    nearest = min(records[2:6], key=lambda record: abs(record["alpha"] - alpha))
    assert (shown["mode"], shown["question_id"]) == ("lookahead", nearest["question_id"]) and shown[
        "alpha"
    ] > 0


def test_a_run_of_the_baseline_alone_has_a_report(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 1, 1, modes=("autoregressive",)))
    result = invoke(folder, "--plots", tmp_path / "plots")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"time.png", "time.svg"}
