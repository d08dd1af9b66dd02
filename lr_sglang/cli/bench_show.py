"""How ``lr-sglang bench`` shows its plan and its result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lr_sglang.bench.variants import Variant
from lr_sglang.cli.execute import Execution
from lr_sglang.cli.formats import grid

if TYPE_CHECKING:
    from lr_sglang.results.report import Report

WIDTH = 150  # of a plan: names of folders are long, and must be whole
HEAD = [
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
WORDS = ("task", "mode", "verifier", "token layer")


def plan(execution: Execution, questions: Mapping[str, int]) -> None:
    """Prints which answers would be made, with which servers and in which order.

    Args:
        questions: how many, by task.
    """
    order, display = execution.order, execution.display
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
        display.out.file.write(json.dumps(everything, ensure_ascii=False) + "\n")
        return
    rows, places = [], []
    for number, (of, deployment) in enumerate(order.sets, 1):
        rows += [
            _row(variant, number, questions[variant.task], counts[variant.key]) for variant in of
        ]
        for role, runtime in deployment.runtimes.items():
            where = runtime.url or (
                f"GPUs {', '.join(map(str, runtime.gpus))}" if runtime.gpus else ""
            )
            places.append(f"set {number}  {role}: {runtime.model or 'running'} {where}".rstrip())
    Console(width=max(display.out.width, WIDTH), highlight=False).print(
        grid(HEAD, rows, left=WORDS)
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
    config = variant.configs[variant.mode]
    look = config["lookahead"] or {}
    name = variant.name() + (f" ({fair})" if (fair := variant.asked.get("fair")) else "")
    layers = _layers(config) if variant.plan.layered(variant.mode) else ""
    return [
        *(variant.task, name, number, variant.concurrency, questions, samples),
        *(
            config["limits"].get("max_tokens") or "context",
            f"{config['sampling']['temperature']:g}",
        ),
        *(look.get("depth", ""), look.get("verifier", ""), layers),
    ]


def _layers(config: dict[str, Any]) -> str:
    found = []
    for role, runtime in config["runtimes"].items():
        layer = runtime.get("token_layer") or {}
        if layer.get("algorithm", "none") != "none":
            found.append(f"{role} {layer['algorithm']} {layer['tokens'] or ''}".rstrip())
    return ", ".join(found)


def report_of(execution: Execution) -> Report:
    """The report of all records in the folder of a benchmark."""
    from lr_sglang.results import collection
    from lr_sglang.results import report as reports

    return reports.make(collection.read([execution.folder]))


def result(execution: Execution, made: Report) -> None:
    """Prints the tables of the report, the verdict, warnings, and how to get plots and a page."""
    from lr_sglang.cli.report import show
    from lr_sglang.results.report import as_json

    if execution.display.as_json:
        execution.display.out.file.write(as_json(made))
        return
    show(made, execution.display.out)
    folder = execution.folder
    execution.display.note(f"records: {folder}")
    execution.display.note(f"plots: lr-sglang report {folder} --plots {folder / 'plots'}")
    execution.display.note(f"a page: lr-sglang report {folder} --html {folder / 'page.html'}")
