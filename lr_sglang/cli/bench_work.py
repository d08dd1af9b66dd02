"""What ``lr-sglang bench`` does: settles what is compared, has it made, and shows the tables."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.bench import dummy, paper, room, sweeps
from lr_sglang.bench import variants as bench_variants
from lr_sglang.bench.schedule import Part, Stretch, in_blocks, together
from lr_sglang.bench.variants import Setting, Variant
from lr_sglang.cli import grading_options
from lr_sglang.cli.display import Display
from lr_sglang.cli.run import chosen_folder, same_questions
from lr_sglang.cli.run_options import RunOptions
from lr_sglang.cli.run_work import need_an_answer
from lr_sglang.cli.settings import settle
from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError, RecordError, SetupError
from lr_sglang.modes import MODES
from lr_sglang.runtimes import launched

if TYPE_CHECKING:
    from lr_sglang.cli.bench_making import Bench
    from lr_sglang.results.report import Report
    from lr_sglang.tasks import Question


def run(given: dict[str, Any]) -> None:
    """Carries out the command.

    Raises:
        LookaheadError: something that cannot be, or nothing could be answered.
    """
    display = Display(as_json=given["json"], quiet=given["quiet"])
    given = _filled(given)
    plan, oracle = settle(RunOptions.of(given)), "random"
    if given["dummy_weights"] or given["flag"]:
        plan = dummy.prepared(plan, given["flag"])
    if given["dummy_weights"]:
        oracle = "oracle"
    questions = _questions(given)
    setting = Setting(
        plan,
        given["mode"],
        tuple(sweeps.points(given["sweep"])),
        given["concurrency"],
        {task: _suffix(task, given) for task in questions},
        oracle,
        given["fair"] or "",
        layered=bool(given["attach"]) and launched.find(given["attach"]).layered,
    )
    found = bench_variants.variants(setting)
    folder = chosen_folder(re.sub(r"[^\w.-]+", "-", given["name"] or "bench"), given["output"], given["resume"])
    made = _bench(given, found, questions, folder)
    if shapes := plan.shapes(given["mode"]):
        display.warn(f"{', '.join(shapes)}: weights are random; the text means nothing, only speeds can be measured")
    if baseline := bench_variants.greedy_baseline(setting):
        display.note(f"lossless answers at temperature 0, and {baseline} is made there too, to compare it with")
    if given["print"]:
        from lr_sglang.cli import bench_show

        bench_show.plan(made, questions, display)
        return
    _make(made, given, questions, display)


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    """The options with presets in them; what the user gave goes before those."""
    preset = paper.PRESETS[given["paper"]] if given["paper"] else None
    filled = dict(given)
    if preset is not None:
        if not any(given[name] for name in ("deployment", "attach", "target", "dummy_weights")):
            raise ConfigError(
                "--paper needs models of the paper's size",
                hint=f"--deployment {' or '.join(preset.deployments)} are its pairs; --print shows the plan",
            )
        filled |= {name: value for name, value in preset.options.items() if given[name] is None}
        filled["task"] = given["task"] or (() if given["input"] else preset.tasks)
        filled["modes"] = given["modes"] or preset.modes
    if given["dummy_weights"]:
        filled = dummy.filled(filled)
    elif given["alpha"] or given["shapes"]:
        raise ConfigError("--alpha and --shapes go with --dummy-weights", hint="--verifier random:0.6 accepts a share")
    filled["task"] = tuple(dict.fromkeys(filled["task"])) or (() if filled["input"] else ("pocket",))
    filled["mode"] = filled["modes"] or _possible(given)
    filled["concurrency"] = tuple(dict.fromkeys(filled["concurrency"] or (1,)))
    if given["concurrency"] and any(text.startswith("concurrency=") for text in filled["sweep"]):
        raise ConfigError("--concurrency and --sweep concurrency say the same", hint="leave one of them out")
    if preset is not None and given["max_tokens"] is None:
        target = settle(RunOptions.of(filled)).models["target"]
        filled["max_tokens"] = preset.max_tokens(target)
    return filled


def _possible(given: dict[str, Any]) -> tuple[str, ...]:
    """All modes; of servers that run already those that they can be asked for: a token layer is set when one starts."""
    if given["attach"]:
        up = launched.find(given["attach"])
        able = (name for name, mode in MODES.items() if "draft" in up.roles or not mode.ahead)
        return tuple(name for name in able if MODES[name].token_layer in (None, up.layered))
    running = (given["target"] or "").startswith(("http://", "https://"))
    return tuple(name for name, mode in MODES.items() if not (running and mode.token_layer))


def _questions(given: dict[str, Any]) -> dict[str, list[Question]]:
    """By task. A task that cannot be had ends the command before anything is started."""
    from lr_sglang import tasks

    span = tasks.parse_range(given["range"]) if given["range"] else None
    found: dict[str, list[Question]] = {}
    for task in given["task"]:
        tasks.get(task)
        found[task] = tasks.load(task, given["limit"], span)
    if given["input"] is not None:
        if given["input"].name in found:
            raise ConfigError(f"--input {given['input']}: a task is called so too", hint="give the file another name")
        found[given["input"].name] = tasks.load(given["input"], given["limit"], span)
    if given["dummy_weights"]:
        return dummy.ungraded(found)
    return found


def _suffix(task: str, given: dict[str, Any]) -> str:
    from lr_sglang.tasks.task import SUFFIX, suffix_for

    if given["prompt_suffix"] is not None:
        return str(given["prompt_suffix"])
    return suffix_for(task) if task in given["task"] else SUFFIX


def samples_of(task: str, given: dict[str, Any]) -> int:
    """Answers per question."""
    if given["samples"]:
        return int(given["samples"])
    preset = paper.PRESETS[given["paper"]] if given["paper"] else None
    return preset.fewer.get(task, preset.samples) if preset else 1


def _bench(given: dict[str, Any], found: list[Variant], questions: dict[str, list[Question]], folder: Path) -> Bench:
    """The variants with their servers, in their order."""
    from lr_sglang.cli.bench_making import Bench

    sets = bench_variants.server_sets(found)
    needed = [bench_variants.needed(of) for of in sets]
    if (folder / "records.jsonl").exists():
        raise RecordError(f"{folder} has the records of a run", hint="give another --output")
    parts = []
    for task, asked in questions.items():
        items = tuple((question, sample) for question in asked for sample in range(samples_of(task, given)))
        parts.append(Part(tuple(tuple((v, v.concurrency) for v in of if v.task == task) for of in sets), items))
    how, why = room.servers(given["servers"], needed)
    if how == "together":
        needed = bench_variants.levelled(needed)
    stretches = (together if how == "together" else in_blocks)(parts, given["seed"] or 0)
    order = {
        "servers": how,
        "why": why,
        "seed": given["seed"] or 0,
        "sets": [[variant.name for variant in of] for of in sets],
        "stretches": [_summary(stretch) for stretch in stretches],
        "caches": "emptied whenever another variant's turn comes",
    }
    about = {
        "schema": 1,
        "command": {
            name: json.loads(json.dumps(value, default=str))
            for name, value in given.items()
            if value not in (None, ()) and value is not False and name not in ROLES  # whose URLs may hold a password
        },
        "variants": {f"{v.folder}/{v.mode}": {"concurrency": v.concurrency, "config": v.config} for v in found},
        "order": order,
    }
    number = max(samples_of(task, given) for task in questions)
    return Bench(
        folder,
        found,
        list(zip(sets, needed, strict=True)),
        stretches,
        about,
        launch_timeout=given["launch_timeout"],
        samples=number,
    )


def _summary(stretch: Stretch[Variant, Any]) -> dict[str, Any]:
    """One stretch, for people who want to know what was made when; the order itself comes of the seed."""
    first = [f"{turn.items[0][0].id}/{turn.items[0][1]} {turn.variant.name}" for turn in stretch.turns[:24]]
    return {
        "servers": [number + 1 for number in stretch.servers],
        "turns": len(stretch.turns),
        "samples": sum(len(turn.items) for turn in stretch.turns),
        "first": first,
    }


def _make(made: Bench, given: dict[str, Any], questions: dict[str, list[Question]], display: Display) -> None:
    from lr_sglang import tasks
    from lr_sglang.cli import bench_show
    from lr_sglang.cli.bench_making import Making

    with ExitStack() as stack:
        graders = {}
        for task, asked in questions.items():
            of = tasks.get(task) if task in given["task"] else None
            graders[task] = stack.enter_context(grading_options.grader(of, asked, given))
            if lacking := grading_options.lacks(graders[task]):
                display.warn(f"{task}: {lacking}; lr-sglang grade does it later")
        made.graders = {} if given["dummy_weights"] else graders
        stores = made.open(stack, resume=given["resume"])
        for folder, task in {variant.folder: variant.task for variant in made.variants}.items():
            same_questions(stores[folder], questions[task])
        making = Making(made, stores, display)
        try:
            making.run()
        except KeyboardInterrupt:
            if given["dummy_weights"] and making.done:
                # It may be stopped when its time is over: the figures so far are of use.
                _draw(bench_show.report_of(made), made.folder, display)
            raise
        records = [record for store in stores.values() for record in store.records.values()]
        need_an_answer(records)
    report = bench_show.report_of(made)
    if not given["dummy_weights"]:
        bench_show.result(made, report, display)
        for folder, store in stores.items():
            grading_options.tell_failures(store.records.values(), display, made.folder / folder)
        return
    from lr_sglang.bench import budget

    bench_show.result(made, report, display, budget.table(report))
    _draw(report, made.folder, display)


def _draw(made: Report, folder: Path, display: Display) -> None:
    """Pictures of what was bought at which price, where matplotlib is installed."""
    from lr_sglang.bench import charts

    try:
        for path in charts.draw(made, folder / "plots"):
            display.note(str(path))
    except SetupError as error:
        display.warn(f"{error.message}; {error.hint}")
