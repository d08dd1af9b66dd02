"""``lr-sglang bench``: modes and settings side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from lr_sglang.api.configuration import Plan
from lr_sglang.bench import order, presets, servers, variants
from lr_sglang.bench.execution import Execution
from lr_sglang.bench.order import Order
from lr_sglang.bench.variants import Method, Variant
from lr_sglang.cli import options, source, streams
from lr_sglang.cli.display import Display, grid
from lr_sglang.cli.report import tell
from lr_sglang.cli.settings import running_layer, running_target, settle
from lr_sglang.cli.source import Source, need_an_answer
from lr_sglang.config import FED, ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES, Able, possible
from lr_sglang.results.store import write_whole, writing
from lr_sglang.runtimes import launched

PLAN_WIDTH = 150  # of a plan: names of folders are long, and must be whole
PLAN_COLUMNS = [
    "task",
    "mode",
    "set",
    "at once",
    "questions",
    "samples",
    "tokens",
    "T",
    "depth",
    "verifier",
    "token layer",
]
LEFT_PLAN_COLUMNS = ("task", "mode", "verifier", "token layer")


class Modes(options.WordChoice):
    """``all``, or modes with commas between them."""

    def __init__(self) -> None:
        super().__init__(["all", *MODES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = [
            super(Modes, self).convert(part.strip(), param, ctx) for part in str(value).split(",")
        ]
        return tuple(MODES) if "all" in parts else tuple(dict.fromkeys(parts))


@click.command()
@click.option("--task", multiple=True, metavar="NAME", help="Again for more.  [default: pocket]")
@click.option(
    "--input", type=options.ANY_PATH, metavar="FILE", help="JSONL or CSV with 'question', 'answer'."
)
@click.option(
    "--modes",
    type=Modes(),
    metavar="MODE,MODE",
    help="all, or some of them.  [default: all]",
)
@click.option(
    "--methods",
    metavar="NAME,NAME",
    help="Modes and programs side by side: lookahead,specreason:threshold=8,FILE.py:FUNCTION.",
)
@options.limit
@click.option(
    "--samples", type=options.SAMPLES, help="Answers per question and mode.  [default: 1]"
)
@click.option("--concurrency", type=options.AT_LEAST_1, default=1, help="Answers at a time.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=VALUES",
    help="depth=1..8, width=1,2, verifier=exact,judge, alpha=0.4,0.8, concurrency=1,2,4, "
    "sd-tokens=0..16, token-layer=none,standalone:6,fed, "
    "gate=0,0.075, policy=fixed,adaptive, schedule=async,sync, "
    "reading=auto,first,never; again to multiply.",
)
@click.option(
    "--fair",
    type=options.WordChoice(variants.WAYS),
    help="Modes without lookahead get all its GPUs.",
)
@click.option("--print", is_flag=True, help="Print the plan, and start nothing.")
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@options.assign(run=options.RunSettings, bench=options.BenchSettings)
@options.resume
@options.output
def bench(**given: Any) -> None:
    """Measures modes side by side on the same questions, and leaves a record of each answer.

    With no other options the pocket models answer the pocket task in every mode. Modes that share
    servers take turns question by question; caches are emptied between them. At the end it says
    whether looking ahead pays, by how much, and how sure that is; report makes plots and a page.

    \b
    Examples:
      lr-sglang bench --task pocket --modes all --samples 2 --limit 25
      lr-sglang bench --methods lookahead,specreason,rsd,autoregressive --sweep concurrency=1,4
      lr-sglang bench --sweep depth=1..8 --modes autoregressive,lookahead
      lr-sglang bench --sweep sd-tokens=0..16 --modes sd,lookahead+sd --limit 10
      lr-sglang bench --sweep token-layer=standalone,fed --modes autoregressive,sd,lossless
      lr-sglang bench -o bench.paper=table1 --deployment qwen3-4gpu --print
      lr-sglang bench -o bench.dummy_weights=true --sweep alpha=0.4,0.8 --sweep depth=1..8
      lr-sglang bench -o bench.figures=my-gpu.json
    """
    display = Display(as_json=given["json"], quiet=given["quiet"])
    given = _filled(given)
    plan = _judged(settle(given))
    sources = _sources(given)
    if given["dummy_weights"]:
        plan = replace(plan, deployment=servers.placed_here(plan.deployment))
    found = variants.variants(
        plan,
        {name: one.suffix for name, one in sources.items()},
        variants.points(given["sweep"]),
        given["concurrency"],
        _methods(given),
        oracle="oracle" if given["dummy_weights"] else "random",
        fair=given["fair"] or "",
    )
    items = {
        name: order.samples_of(one.questions, answers_per_question(name, given))
        for name, one in sources.items()
    }
    made = order.in_turns(found, items, given["servers"], given["seed"] or 0)
    most = max(answers_per_question(name, given) for name in sources)
    folder = source.folder_for("bench", given)
    execution = Execution(
        folder, made, display, most, plan.deployment.launch_timeout, command=_command(given, made)
    )
    execution.warm_up = next(iter(sources.values())).questions[0].question
    if given["print"]:
        _show_plan(execution, display, {name: len(one.questions) for name, one in sources.items()})
    else:
        _make(execution, display, given, sources)


def _judged(plan: Plan) -> Plan:
    """The plan with conclusions that are judged, as the paper's are, unless it says otherwise."""
    look = plan.deployment.lookahead
    if "conclusion" in look.model_fields_set:
        return plan
    return plan.with_settings(lookahead=look.replace(conclusion="judged"))


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    """The options, completed by presets; options that the user gave have precedence."""
    filled = dict(given)
    if given["paper"]:
        if not any(given[name] for name in ("deployment", "attach", "target", "dummy_weights")):
            raise ConfigError(
                "bench.paper needs models of the paper's size",
                hint="--deployment deepseek-4gpu or qwen3-4gpu are its pairs; --print shows the "
                "plan",
            )
        filled |= {
            name: value for name, value in presets.TABLE1.items() if given.get(name) in (None, ())
        }
        filled["task"] = given["task"] or (() if given["input"] else filled["task"])
    if given["figures"]:
        filled = presets.for_figures(filled)
    if given["dummy_weights"]:
        filled = presets.with_random_weights(filled)
    elif given["shapes"]:
        raise ConfigError("bench.shapes goes with bench.dummy_weights")
    filled["task"] = tuple(dict.fromkeys(filled["task"])) or (
        () if filled["input"] else ("pocket",)
    )
    filled["mode"] = filled["modes"] or _possible(given)
    if asked := _methods(given):
        filled["mode"] = tuple(dict.fromkeys(method.mode for method in asked))
    if given["paper"] and given["max_tokens"] is None:
        filled["max_tokens"] = presets.paper_tokens(settle(filled).models["target"])
    return filled


def _methods(given: Mapping[str, Any]) -> list[Method]:
    """The methods of --methods; none without it."""
    if not given["methods"]:
        return []
    if beside := [name for name in ("modes", "program", "dummy_weights") if given[name]]:
        raise ConfigError(
            f"--methods and {beside[0].replace('_', ' ')} both say what is compared",
            hint="a mode is a method too: --methods lookahead,rsd,autoregressive",
        )
    layered = (given["token_layer"] or "none") != "none" or bool(running_layer(given))
    return variants.methods(given["methods"], layered)


def _possible(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The possible modes: a token layer is set when a server starts, so running servers cannot
    change it.
    """
    roles = launched.find_launched(given["attach"]).roles if given["attach"] else ROLES
    layer = running_layer(given)
    if layer is None and running_target(given):
        layer = ""  # it does not tell
    able = possible(Able(roles, layer))
    fed = {"sd"} if given["token_layer"] == FED else set()  # it is SGLang's own speculation
    return tuple(name for name in able if name not in fed)


def _sources(given: Mapping[str, Any]) -> dict[str, Source]:
    """The questions by task; a task that cannot be read ends the command before any
    server starts.
    """
    found = {name: source.of_task(name, given) for name in given["task"]}
    if given["input"] is not None:
        found[given["input"].name] = source.of_file(given)
    if given["dummy_weights"]:  # random text is not graded
        for name, one in found.items():
            found[name] = replace(one, questions=[replace(q, answer=None) for q in one.questions])
    return found


def answers_per_question(task: str, given: Mapping[str, Any]) -> int:
    """Answers per question."""
    return given["samples"] or (presets.paper_samples(task) if given["paper"] else 1)


def _command(given: Mapping[str, Any], made: Order) -> dict[str, Any]:
    """The command's options for run.json, without the roles: their URLs may hold a password."""
    return {
        "schema": 1,
        "command": {
            name: json.loads(json.dumps(value, default=str))
            for name, value in given.items()
            if value not in (None, ()) and value is not False and name not in ROLES
        },
        "variants": {
            f"{v.folder}/{v.mode}": {"concurrency": v.concurrency, "config": v.config}
            for v in made.variants
        },
    }


def _make(
    execution: Execution,
    display: Display,
    given: Mapping[str, Any],
    sources: Mapping[str, Source],
) -> None:
    random = given["dummy_weights"]
    with ExitStack() as stack:
        for task, one in {} if random else sources.items():
            execution.graders[task] = stack.enter_context(one.grader())
            if lacking := source.lacks(one):
                display.warn(lacking)
        need_an_answer(execution.run(resume=given["resume"]))
    tell(execution.folder, display)
    if given["figures"]:
        _write_figures(execution, display, Path(given["figures"]))
    if random:
        return
    for folder, store in execution.stores.items():
        source.tell_failures(store.records.values(), display, execution.folder / folder)


def _write_figures(execution: Execution, display: Display, path: Path) -> None:
    """Writes the figures that others may have, and says how to send them."""
    from lr_sglang.results import collection, figures
    from lr_sglang.results import report as reports

    made = reports.make_report(collection.read_runs([execution.folder]))
    with writing(path, "give another bench.figures"):
        write_whole(path, figures.of_run(made, execution.versions))
    display.note(
        f"{path}: the figures of this machine, with nothing private. Please attach it to an issue "
        "of this project; lr-sglang report FILE... puts several files into one table"
    )


def _show_plan(execution: Execution, display: Display, questions: Mapping[str, int]) -> None:
    """Prints which answers would be made, with which servers and in which order.

    Args:
        questions: how many, by task.
    """
    order = execution.order
    counts = Counter[Any]()
    for turn in order.turns:
        counts[turn.variant.key] += len(turn.items)
    if display.as_json:
        everything = {
            **execution.command,
            "order": order.about,
            "output": str(execution.folder),
            "samples": counts.total(),
        }
        streams.write_json(everything)
        return
    rows = []
    places = []
    for number, (of, deployment) in enumerate(order.sets, 1):
        rows += [
            _row(variant, number, questions[variant.task], counts[variant.key]) for variant in of
        ]
        for role, runtime in deployment.runtimes.items():
            where = runtime.url or (
                f"GPUs {', '.join(map(str, runtime.gpus))}" if runtime.gpus else ""
            )
            places.append(f"set {number}  {role}: {runtime.model or 'running'} {where}".rstrip())
        if why := servers.spared(of, deployment):
            places.append(f"set {number}  {why}")
    Console(width=max(display.out.width, PLAN_WIDTH), highlight=False).print(
        grid(PLAN_COLUMNS, rows, left=LEFT_PLAN_COLUMNS)
    )
    starts = "; ".join(
        ", ".join(map(str, stretch["servers"])) for stretch in order.about["stretches"]
    )
    for line in (
        *places,
        f"servers: {order.about['servers']} ({order.about['why']}); sets up, in order: {starts}",
        f"{counts.total()} answers; caches are {order.about['caches']}; records go to "
        f"{execution.folder}",
    ):
        display.out.print(Text(line), soft_wrap=True)


def _row(variant: Variant, number: int, questions: int, samples: int) -> list[Any]:
    config = variant.config
    look = config["lookahead"] or {}
    name = variant.name + (f" ({fair})" if (fair := variant.asked.get("fair")) else "")
    layers = _layers(config) if variant.plan.layered(variant.mode) else ""
    return [
        variant.task,
        name,
        number,
        variant.concurrency,
        questions,
        samples,
        config["limits"].get("max_tokens") or "context",
        f"{config['sampling']['temperature']:g}",
        look.get("depth", ""),
        look.get("verifier", ""),
        layers,
    ]


def _layers(config: dict[str, Any]) -> str:
    found = []
    for role, runtime in config["runtimes"].items():
        layer = runtime.get("token_layer") or {}
        if layer.get("algorithm", "none") != "none":
            found.append(f"{role} {layer['algorithm']} {layer['tokens'] or ''}".rstrip())
    return ", ".join(found)
