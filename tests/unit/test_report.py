"""Reading runs, the tables and plots of a report, and the command."""

import io
import json
import xml.etree.ElementTree as ET
from statistics import stdev
from types import SimpleNamespace

import pytest
from rich.console import Console

from lr_sglang.cli import display
from lr_sglang.cli.report import show_report
from lr_sglang.errors import RecordError
from lr_sglang.results import charts, collection, figures, page, report
from tests import synthetic
from tests.called import called
from tests.synthetic import Truth, write

MODES = ("autoregressive", "sd", "lookahead", "lookahead+sd")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tasks in four modes."""
    records = [
        *synthetic.run(Truth(alpha=0.7, token_layer=1.5), 8, 2, modes=MODES, task="gsm8k"),
        *synthetic.run(Truth(alpha=0.4, token_layer=1.5), 8, 2, modes=MODES, task="aime24"),
    ]
    return write(tmp_path_factory.mktemp("run") / "both", records)


def made(*folders):
    return report.make_report(collection.read_runs(folders))


@pytest.fixture(scope="module")
def whole(run):
    """The report of the two tasks; it takes a second to make."""
    return made(run)


def table(found, title):
    return next(one for one in found.tables if one.title.startswith(title))


def invoke(*words, code=0):
    return called("report", *words, code=code)


# -- reading


def test_records_are_sorted_by_task_mode_and_setting(tmp_path):
    records = [
        r for depth in (2, 4) for r in synthetic.run(Truth(depth=depth), 3, modes=("lookahead",))
    ]
    found = collection.read_runs([write(tmp_path / "a", records)])
    assert [(g.mode, g.label, len(g.rows)) for g in found.groups] == [
        ("lookahead", "depth 2", 6),
        ("lookahead", "depth 4", 6),
    ]
    assert [g.value("depth") for g in found.groups] == [2, 4]


def test_a_setting_that_follows_from_another_is_no_part_of_a_label():
    """Of layers with and without a draft model the name of the layer is said, and nothing else."""
    layers = (("none", None, None), ("standalone", 10, "m"), ("fed", 6, None))
    base = "runtimes.target.token_layer"
    groups = [
        collection.Group(
            "pocket",
            "lossless",
            1,
            {f"{base}.algorithm": name, f"{base}.tokens": tokens, f"{base}.draft_model": model},
            [],
        )
        for name, tokens, model in layers
    ]
    assert {group.label for group in collection.labelled(groups)} == {
        "token layer fed",
        "token layer standalone",
        "token layer none",
    }


def test_a_long_name_hides_no_figure():
    rows = [["lossless (" + "a setting " * 20 + ")", "1.25"], ["sd", "1.50"]]
    table = report.Table("Speed", ["mode", "seconds"], rows)
    names = SimpleNamespace(models="", notes=())
    found = SimpleNamespace(collection=names, tables=[table], warning="", verdicts=())
    console = Console(width=80, file=io.StringIO())
    show_report(found, console)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["sd", "1.50"] in lines
    assert [*rows[0][0].split(), "1.25"] in lines


def test_every_word_of_every_table_is_printed_however_narrow_the_terminal_is(whole):
    console = Console(width=60, file=io.StringIO())
    show_report(whole, console)
    said = console.file.getvalue().split()
    for table in whole.tables:
        for cell in (*table.columns, *(cell for row in table.rows for cell in row)):
            assert set(cell.split()) <= set(said), (table.title, cell)


def test_folders_are_merged_and_paired(tmp_path):
    """A baseline in one folder and lookahead in another are compared; the same samples of two
    folders both count.
    """
    base = write(tmp_path / "a", synthetic.run(Truth(), 5, 1, modes=("autoregressive",)))
    first = write(tmp_path / "b", synthetic.run(Truth(), 5, 1, modes=("lookahead",)))
    second = write(tmp_path / "c", synthetic.run(Truth(), 5, 1, seed=1, modes=("lookahead",)))
    one, two = made(base, first), made(base, first, second)
    assert one.measures[1].speed.seconds.samples == 5
    assert len(two.measures[1].group.rows) == 10
    assert two.measures[1].speed.seconds.samples == 5  # the baseline has one of each
    assert made(tmp_path).measures[1].speed == two.measures[1].speed


def test_seeds_are_pooled_and_other_sampling_is_not_compared(tmp_path):
    records = synthetic.run(Truth(), 4, 1)
    for number, record in enumerate(records):
        record["config"]["sampling"]["seed"] = number
    assert len(collection.read_runs([write(tmp_path / "a", records)]).groups) == 2
    for record in records:
        if record["mode"] == "lookahead":
            record["config"]["sampling"]["temperature"] = 0.0
    other = collection.read_runs([write(tmp_path / "b", records)])
    assert other.base(other.groups[1]) is None


def test_a_run_that_is_at_work_is_read_so_far(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 2, 1))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "quest')
    found = collection.read_runs([folder])
    assert len(found.rows) == 4
    assert "cut off" in found.notes[0]


def test_lines_that_are_no_record_are_counted_and_the_others_used(tmp_path):
    made = synthetic.run(Truth(), 2, 1)
    folder = write(tmp_path / "a", made)
    text = (folder / "records.jsonl").read_text()
    bare = json.dumps({**made[0], "steps": None})
    torn = text.splitlines()[0][:50]
    (folder / "records.jsonl").write_text(f"\n{torn}\n\n{text}{bare}\n\n\n")
    found = collection.read_runs([folder])
    assert len(found.rows) == 4
    (said,) = found.notes
    assert "2 lines are left out: line 2 is no record; line 8 is a record that lacks" in said


def test_a_file_of_questions_is_known_where_records_are_wanted(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "how many?", "answer": "17"}\n')
    with pytest.raises(
        RecordError, match=r"line 1 is a question, no record.*\nHint: .*run --input"
    ):
        collection.read_runs([tmp_path / "q.jsonl"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (".", "", "no record yet"),
        (".", "\n\n", "no record yet"),
        (".", "[]\n", "no record"),
        (
            ".",
            '{"schema":1,"question_id":"a","sample":0,"mode":"lookahead"}\n',
            "it lacks question",
        ),
        (".", None, "there are no records in it"),
        ("absent", None, "no such folder"),
        ("a" * 300, None, "cannot be read: File name too long"),
    ],
)
def test_what_is_no_record_and_a_folder_without_any_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / "records.jsonl").write_text(content)
    with pytest.raises(RecordError, match=message):
        collection.read_runs([tmp_path / name])


# -- tables


def test_every_mode_has_its_speed_up(whole):
    found = table(whole, "Speed")
    assert [tuple(row[:2]) for row in found.rows] == [
        (task, mode) for task in ("gsm8k", "aime24") for mode in MODES
    ]
    speeds = found.columns.index("speed-up, tokens/s")
    assert found.rows[1][speeds].startswith("1.50x (") and found.rows[0][speeds] == "-"


def test_the_times_of_every_run_are_accounted_for(whole):
    for m in whole.measures:
        assert m.time["share"] == pytest.approx(1, abs=0.02)
    assert {row[-1] for row in table(whole, "Where the time went").rows} == {"100.0"}


def test_runs_of_random_weights_are_marked_everywhere(tmp_path, whole):
    assert whole.warning == ""
    records = synthetic.run(Truth(), 3, 1)
    for record in records:
        record["config"]["runtimes"]["target"]["model"] = "dummy:qwen3-32b"
    found = made(write(tmp_path / "a", records))
    assert found.to_dict()["marks"] == ["dummy weights"]
    said = " ".join(invoke(tmp_path / "a").stdout.split())
    assert said.count("(random weights: times are real") == len(found.tables) + len(found.verdicts)


def test_a_role_shows_how_much_of_its_prompts_was_cached(tmp_path):
    records = synthetic.run(Truth(), 3, 1, modes=("lookahead",))
    (found,) = made(write(tmp_path / "a", records)).measures
    for role in ("target", "draft", "judge"):
        counts = [record["tokens"][role] for record in records]
        prompt, cached = (sum(one[name] for one in counts) for name in ("prompt", "cached"))
        assert found.roles[role]["calls"] == sum(one["calls"] for one in counts)
        assert found.roles[role]["hit_rate"] == (cached / prompt if prompt else None)


def test_prefills_and_passes_of_the_target_are_told_for_each_step(tmp_path):
    records = synthetic.run(Truth(steps=4), 3, 1, modes=("lookahead",))
    steps = sum(len(record["steps"]) for record in records)
    for record in records:
        record["tokens"]["target"] |= {"prefills": 3, "passes": 40}
    found = made(write(tmp_path / "a", records))
    (row,) = table(found, "Runtimes").rows
    columns = table(found, "Runtimes").columns
    assert row[columns.index("target prefills")] == f"{9 / steps:.2f}"
    assert row[columns.index("target passes")] == f"{120 / steps:.2f}"
    del records[0]["tokens"]["target"]["passes"]
    assert "target passes" not in table(made(write(tmp_path / "b", records)), "Runtimes").columns


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
    found = json.loads(invoke(run, "--json").stdout)
    assert (found["schema"], len(found["groups"])) == (1, 8)
    ahead = next(g for g in found["groups"] if (g["task"], g["mode"]) == ("gsm8k", "lookahead"))
    assert ahead["accuracy"].keys() == {"value", "low", "high", "samples", "questions"}
    assert ahead["difference"]["verdict"] in ("kept", "worse", "open")
    assert ahead["expected"]["speedup"] > 1
    assert ahead["time"]["parts"]["judge"] > 0
    assert (ahead["samples"], ahead["questions"]) == (16, 8)


def test_names_from_files_are_no_markup(tmp_path):
    records = synthetic.run(Truth(), 2, 1, task="=a|b`<script>\x1b[31m$x$")
    said = invoke(write(tmp_path / "a", records)).stdout
    assert "<script>" in said and "\x1b" not in said


def test_text_has_all_tables_and_no_broken_figure(run, whole):
    text = invoke(run).stdout
    for one in whole.tables:
        assert one.title[:40] in text
    assert "…" not in text
    assert whole.measures[2].group.name in text


# -- plots


def drawn(folder):
    assert {path.suffix for path in folder.iterdir()} == {".png", ".svg"}
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    return {path.stem: path.read_text() for path in folder.glob("*.svg")}


def test_plots_are_drawn_as_png_and_svg(tmp_path, run):
    records = synthetic.run(Truth(depth=3), 4, 1, modes=MODES, task="gsm8k")
    for record in records:
        if record["mode"].endswith("sd"):
            for one in record["config"]["runtimes"].values():
                one["token_layer"]["tokens"] = 4
    more = write(tmp_path / "more", records)
    together = write(tmp_path / "together", records, concurrency=4)
    formula = "$\\frac$_^{"  # what a model or a user wrote is shown as it is, and is no formula
    random = synthetic.run(Truth(), 3, 1, task=formula)
    for record in random:
        record["config"]["runtimes"]["target"]["model"] = "dummy:target"
    named = write(tmp_path / "named", random)
    invoke(run, more, together, named, "--json", "--plots", tmp_path / "plots")
    pictures = drawn(tmp_path / "plots")
    assert pictures.keys() == {
        *("speedup", "by_concurrency", "by_depth", "by_sd_tokens", "by_acceptance"),
    }
    assert formula in pictures["speedup"]
    for svg in pictures.values():
        assert ET.fromstring(svg).tag.endswith("svg")
        assert "Random weights" in svg


def test_a_run_of_the_baseline_alone_has_a_report(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 1, 1, modes=("autoregressive",)))
    result = invoke(folder, "--plots", tmp_path / "plots")
    assert not (tmp_path / "plots").exists() and "no plots: " in result.stderr
    assert "Does looking ahead pay" not in result.output


# -- the verdict


def test_the_fastest_way_is_held_against_the_fastest_without_lookahead(tmp_path):
    records = synthetic.run(Truth(alpha=0.7, token_layer=1.5), 20, 1, modes=MODES)
    (found,) = made(write(tmp_path / "a", records)).verdicts
    assert (found.ahead, found.plain, found.pays) == ("lookahead+sd", "sd", True)
    said = " ".join(invoke(tmp_path / "a").stdout.split())
    assert "Does looking ahead pay for synthetic, 1 at once? Yes: lookahead+sd has 1." in said
    assert "x the speed of sd (95 %: 1." in said and "20 questions. Accuracy: " in said
    (told,) = json.loads(invoke(tmp_path / "a", "--json").stdout)["verdicts"]
    assert told["pays"] is True and told["speed"]["low"] > 1


@pytest.mark.parametrize(
    ("truth", "questions", "said"),
    [
        (Truth(alpha=0.02, c1=0.9, judge=0.5), 20, "No: lookahead has 0."),
        (Truth(alpha=0.25, c1=0.4), 20, "Too few questions to tell: lookahead has 1."),
        (Truth(alpha=0.7), 20, "Yes: lookahead has 2."),
        (Truth(alpha=0.7, accuracy=0.9, loss=0.8), 40, "No: lookahead has 2."),
    ],
)
def test_a_verdict_in_words(tmp_path, truth, questions, said):
    (found,) = made(write(tmp_path / "a", synthetic.run(truth, questions, 1))).verdicts
    assert found.words()[0].partition("? ")[2].startswith(said)


def test_a_way_that_used_no_draft_is_not_praised_for_looking_ahead(tmp_path):
    records = synthetic.run(Truth(token_layer=1.5), 20, 1, modes=("lookahead+sd", "sd"))
    for record in records:
        if record["mode"] != "sd":
            record |= {"mode": "lossless", "alone": "its layer guesses"}
    (found,) = made(write(tmp_path / "a", records)).verdicts
    assert found.words()[-1].endswith(" used no draft: its layer guesses.")


def test_what_may_have_spoiled_it_stands_beside_the_verdict(tmp_path):
    records = synthetic.run(Truth(), 8, 1)
    for record in records:
        for step in record["steps"]:
            for verdict in step["verdicts"]:
                verdict["by"] = "late"
    write(tmp_path / "bench" / "sampled", records)
    spoiled = {"warnings": ["draft: its cache was not emptied at a turn (busy)"]}
    (tmp_path / "bench" / "run.json").write_text(json.dumps(spoiled))
    said = " ".join(invoke(tmp_path / "bench").stdout.split())
    assert "% of the drafts came too late to be compared" in said
    assert said.index("its cache was not emptied") > said.index("Does looking ahead pay")


# -- figures for others


PRIVATE = "/home/someone/models/secret"


def given_away(folder, **runtime):
    """The figures of a run whose target has these settings."""
    records = synthetic.run(Truth(alpha=0.7), 8, modes=MODES[::2], task="gsm8k")
    for record in records:
        record["config"]["runtimes"] = {"target": runtime}
        if record["config"]["lookahead"]:
            record["config"]["lookahead"]["verifier"] = f"{PRIVATE}.py:Own"
    return figures.of_run(made(write(folder, records)), {"sglang": "0.5.23"})


def test_figures_for_others_have_nothing_private(tmp_path):
    extra = {
        "attention-backend": "triton",
        "page-size": 16,
        "api-key": "sk-1234",
        "chat-template": f"{PRIVATE}/a.jinja",
    }
    found = given_away(tmp_path / "run", model=PRIVATE, dtype="bfloat16", extra=extra)
    text = json.dumps(found)
    for private in ("secret", "someone", "sk-1234", str(tmp_path), "simulated/target"):
        assert private not in text, private
    settings = found["figures"][0]["settings"]
    assert {
        "runtimes.target.dtype": "bfloat16",
        "runtimes.target.extra.attention-backend": "triton",
        "runtimes.target.extra.page-size": 16,
        "runtimes.target.model": "(not told)",
    }.items() <= settings.items()
    assert settings["sampling.temperature"] is not None


def test_files_of_figures_become_one_table(tmp_path):
    names = {"one": "pocket:target@qwen3-32b", "two": "Qwen/Qwen3-8B"}
    files = []
    for name, model in names.items():
        found = given_away(tmp_path / name, model=model)
        found["machine"]["gpus"] = [{"name": f"GPU {name}", "memory": 80.0, "driver": "580"}]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(found))
    lines = invoke(*files).stdout.splitlines()
    rows = [line.split() for line in lines[1:5]]
    assert [row[:3] for row in rows] == [
        [number, "gsm8k", mode] for number in "12" for mode in MODES[::2]
    ]
    value = json.loads(files[0].read_text())["figures"][1]["speed"]["seconds"]["value"]
    assert f"{value:.2f}x" in rows[1] and rows[1][3] == "8"
    assert lines[5:] == [
        f"{n}: GPU {name} (80 GiB), SGLang 0.5.23; target {model}"
        for n, (name, model) in enumerate(names.items(), 1)
    ]
    assert json.loads(invoke(*files, "--json").stdout) == [
        json.loads(file.read_text()) for file in files
    ]
    files[0].write_text(json.dumps({"kind": figures.KIND, "figures": [{}]}))
    assert "lacks" in invoke(files[0], code=1).output


def test_repeated_answers_have_what_the_field_prints(tmp_path):
    """pass@1 with its standard error, pass@k, majority@k, no answer, and answers that were cut."""
    answers = {  # by question: answers, of which 7 is right
        "a": ["7", "7", "8", "7"],
        "b": [8, "8.", "7", None],  # a grader of a user's may give a number
        "c": ["7", "8", None, None],
        "d": [None, None, None, None],
    }
    records = synthetic.run(synthetic.Truth(), questions=4, samples=4, modes=("autoregressive",))
    for record, (question, answer) in zip(
        records, ((name, one) for name, made in answers.items() for one in made), strict=True
    ):
        record |= {"question_id": question, "answer": answer, "correct": answer == "7"}
        record["finish"] = "length" if answer is None else "stop"
    (measured,) = made(write(tmp_path / "run", records)).measures
    assert measured.accuracy.value == pytest.approx(5 / 16)
    # of the shares 3/4, 1/4, 1/4 and 0, over four questions
    assert measured.standard_error == pytest.approx(stdev([0.75, 0.25, 0.25, 0]) / 2)
    assert measured.any_right.value == pytest.approx(3 / 4)
    # a: 7; b: 8, twice; c: 7 or 8; d: none
    assert measured.majority.value == pytest.approx((1 + 0 + 0.5 + 0) / 4)
    assert (measured.no_answer, measured.cut) == (7 / 16, 7 / 16)
    shown = table(made(write(tmp_path / "run", records)), "Quality")
    cells = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert {
        "± SE": "15.7",
        "pass@k %": "75.0",
        "majority@k %": "37.5",
        "no answer %": "43.8",
        "cut %": "43.8",
    }.items() <= cells.items()


def test_the_first_text_is_a_step_or_the_first_token_of_the_target_alone(tmp_path):
    truth = synthetic.Truth(alpha=1.0)
    records = synthetic.run(truth, questions=2, samples=1)
    for record in records:
        for branch in record["branches"] if record["mode"] == "autoregressive" else ():
            branch |= {"queued": 0.25, "prefill": 0.5}
    plain, ahead = made(write(tmp_path / "run", records)).measures
    assert plain.first.value == pytest.approx(0.75)
    after = sum(one["seconds"] - 0.75 for one in records if one["mode"] == "autoregressive")
    tokens = sum(one["tokens"]["used"] - 1 for one in records if one["mode"] == "autoregressive")
    assert plain.each.value == pytest.approx(after / tokens)
    first = [one["steps"][0]["seconds"] for one in records if one["mode"] == "lookahead"]
    assert ahead.first.value == pytest.approx(sum(first) / 2)
    untold = synthetic.run(truth, questions=2, samples=1, modes=("autoregressive",))
    (plain,) = made(write(tmp_path / "untold", untold)).measures
    assert plain.first is plain.each is None


# -- what is shown is what was measured


def reading(records, agreed=9, read=10):
    """Records of answers that read the draft: more of its tokens agree than whole steps."""
    for record in records:
        if record["mode"] != "autoregressive":
            record |= {"read_tokens": read, "agreed_tokens": agreed}
    return records


def lossless(questions=8, **more):
    records = synthetic.run(Truth(alpha=0.5), questions, 1)
    for record in records:
        if record["mode"] == "lookahead":
            record["mode"] = "lossless"
            record["config"]["lookahead"]["verifier"] = "exact"
    return reading(records, **more)


def test_an_exact_mode_shows_the_agreement_of_tokens_in_place_of_alpha(tmp_path):
    found = made(write(tmp_path / "a", lossless()))
    assert [m.acceptance[0] for m in found.measures] == ["alpha", "agreement"]
    about = page.index(found)
    names = [name for name, *_ in about["groups"][1]["facts"]]
    assert "agreement" in names and "alpha" not in names
    shares = {(one["kept"], one["share"]) for one in about["records"]}
    assert shares == {("alpha", None), ("agreement", 0.9)}
    said = display.of_sample(found.measures[1].group.rows[0].whole())
    assert any(line.startswith("agreement 0.90 (9 of 10 tokens)") for line in said)
    assert "by_acceptance" not in dict(charts._figures(found)), "its speed does not follow alpha"


def test_what_was_judged_keeps_its_alpha_where_steps_were_read_first(tmp_path):
    found = made(write(tmp_path / "a", reading(synthetic.run(Truth(alpha=0.5), 8, 1))))
    assert found.measures[1].acceptance[0] == "alpha"
    figure = dict(charts._figures(found))["by_acceptance"]
    assert "async, depth 6, formula" in [line.get_label() for line in figure.axes[0].lines]


def test_a_point_at_full_acceptance_is_drawn_whole_and_formulas_reach_it(tmp_path):
    found = made(write(tmp_path / "a", synthetic.run(Truth(alpha=1.0), 8, 1)))
    (axes,) = dict(charts._figures(found))["by_acceptance"].axes
    assert found.measures[1].alpha.value == 1.0
    assert axes.get_xlim()[0] < 0 and axes.get_xlim()[1] > 1
    formula = next(line for line in axes.lines if str(line.get_label()).endswith("formula"))
    assert max(formula.get_xdata()) == 1.0


@pytest.mark.parametrize(
    ("questions", "title"), [(4, "by task and mode"), (8, "by task and mode (95 % intervals)")]
)
def test_pictures_promise_and_draw_intervals_only_where_there_are_some(tmp_path, questions, title):
    found = made(write(tmp_path / "a", synthetic.run(Truth(), questions, 1)))
    (axes,) = dict(charts._figures(found))["speedup"].axes
    assert axes.get_title().endswith(title)
    caps = [line for line in axes.lines if line.get_marker() == "_"]
    drawn = [y for cap in caps for y in cap.get_ydata() if y == y]
    assert bool(drawn) == (questions == 8)


def test_a_sweep_without_expectation_promises_none(tmp_path):
    records = [r for depth in (2, 4) for r in reading(synthetic.run(Truth(depth=depth), 8, 1))]
    found = made(write(tmp_path / "a", records))
    (axes,) = dict(charts._figures(found))["by_depth"].axes
    assert axes.get_title() == "Speed-up against depth"


def test_the_page_has_the_name_of_what_was_asked_for(tmp_path):
    write(tmp_path / "bench" / "sampled", synthetic.run(Truth(), 2, 1))
    for asked, name in (("bench", "bench"), ("bench/sampled/records.jsonl", "sampled")):
        invoke(tmp_path / asked, "--html", tmp_path / "page.html")
        assert f"<title>Lookahead Reasoning: {name}</title>" in (tmp_path / "page.html").read_text()


def test_the_only_program_of_a_run_names_its_rows(tmp_path):
    records = synthetic.run(Truth(), 3, 1, modes=("lookahead",))
    for record in records:
        record["config"]["program"] = "dir/FILE.py:mine"
    (found,) = made(write(tmp_path / "a", records)).measures
    assert found.group.method == found.group.name == "FILE.py:mine"


def test_progress_says_which_sample_and_mode():
    record = synthetic.run(Truth(), 1, 2, modes=("lookahead",))[1]
    assert display.sample_line(record, numbered=True).startswith("synthetic-000 #1  lookahead  ")
    assert display.sample_line(record).startswith("synthetic-000  lookahead  ")
    failed = record | {"error": {"message": "gone"}}
    assert display.sample_line(failed, numbered=True) == "synthetic-000 #1  lookahead  failed: gone"


def test_a_table_explains_the_columns_that_it_has(tmp_path):
    """And its intervals, where there are any."""
    few = made(write(tmp_path / "few", synthetic.run(Truth(), 4, 1)))
    many = made(write(tmp_path / "many", reading(synthetic.run(Truth(), 8, 2))))
    assert "agreement" not in table(few, "Acceptance").note
    assert "agreement" in table(many, "Acceptance").note
    assert "pass@k" not in table(few, "Quality").note and "pass@k" in table(many, "Quality").note
    for found in (few, many):
        for one in found.tables:
            cells = [cell for row in one.rows for cell in row]
            assert ("95 %" in one.note) == any(".." in cell for cell in cells), one.title
            assert one.note and len(one.columns) > 2, one.title


def test_answers_that_come_at_once_are_told_and_are_no_time_after_the_first(tmp_path):
    """One that the target wrote alone is timed by its request, where the server tells."""
    records = synthetic.run(Truth(), 8, 1, modes=("lookahead",))
    for record in records[::2]:
        for step in record["steps"]:
            step["seconds"] = record["seconds"]
    (found,) = made(write(tmp_path / "a", records)).measures
    assert found.at_once == 0.5
    rest = records[1::2]
    after = sum(one["seconds"] - one["steps"][0]["seconds"] for one in rest)
    assert found.each.value == pytest.approx(after / sum(one["tokens"]["used"] - 1 for one in rest))
    shown = table(made(tmp_path / "a"), "Speed")
    assert shown.rows[0][shown.columns.index("to the first, s")].endswith("(50 % at once)")
    alone = synthetic.run(Truth(), 4, 1, modes=("autoregressive",))
    for record in alone:  # the target's second request, as of a long answer
        record["branches"].append(record["branches"][0] | {"position": 2})
    (found,) = made(write(tmp_path / "b", alone)).measures
    assert found.first is None


def test_a_step_of_which_no_draft_was_begun_is_the_targets_own(tmp_path):
    for mode, alone in (("autoregressive", True), ("lookahead", False)):
        (record,) = synthetic.run(Truth(alpha=0), 1, 1, modes=(mode,))
        for step in record["steps"]:
            step |= {"outcome": "bonus", "draft_texts": [], "verdicts": [], "source": "target"}
        assert {step["alone"] for step in page.detail(record)["steps"]} == {alone}, mode
