"""How ``lr-sglang bench`` shows its plan and its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from lr_sglang.cli.bench_making import Bench
from lr_sglang.cli.display import Display

if TYPE_CHECKING:
    from lr_sglang.results.report import Report
    from lr_sglang.results.tables import Table
    from lr_sglang.tasks import Question


WIDTH = 150  # of a plan: names of folders are long, and must be whole


def plan(bench: Bench, questions: dict[str, list[Question]], display: Display) -> None:
    """What would be made, with which servers and in which order."""
    order = bench.about["order"]
    counts: dict[tuple[str, str], int] = {}
    for stretch in bench.stretches:
        for turn in stretch.turns:
            counts[turn.variant.key] = counts.get(turn.variant.key, 0) + len(turn.items)
    if display.as_json:
        everything = {**bench.about, "output": str(bench.folder), "samples": sum(counts.values())}
        display.out.file.write(json.dumps(everything, ensure_ascii=False) + "\n")
        return
    table = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    words = ("task", "mode", "verifier", "token layer")
    numbers = ("set", "at once", "questions", "samples", "tokens", "T", "depth")
    for name in (*words[:2], *numbers, *words[2:]):
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    for number, (of, _) in enumerate(bench.sets, 1):
        for variant in of:
            config = variant.config
            look, layers = config["lookahead"] or {}, _layers(config) if variant.plan.layered(variant.mode) else ""
            most = config["limits"].get("max_tokens")
            name = variant.name + (f" ({fair})" if (fair := variant.asked.get("fair")) else "")
            cells: list[Any] = [variant.task, name, number, variant.concurrency, len(questions[variant.task])]
            cells += [counts.get(variant.key, 0), most or "context", f"{config['sampling']['temperature']:g}"]
            cells += [look.get("depth", ""), look.get("verifier", ""), layers]
            table.add_row(*(Text(str(cell)) for cell in cells))
    Console(width=max(display.out.width, WIDTH), highlight=False).print(table)
    for number, (_, deployment) in enumerate(bench.sets, 1):
        for role, runtime in deployment.runtimes.items():
            where = runtime.url or (f"GPUs {', '.join(map(str, runtime.gpus))}" if runtime.gpus else "")
            display.out.print(
                Text(f"set {number}  {role}: {runtime.model or 'running'} {where}".rstrip()), soft_wrap=True
            )
    starts = [", ".join(map(str, stretch["servers"])) for stretch in order["stretches"]]
    display.out.print(
        Text(f"servers: {order['servers']} ({order['why']}); sets up, in order: {'; '.join(starts)}"), soft_wrap=True
    )
    display.out.print(
        Text(f"{sum(counts.values())} answers; caches are {order['caches']}; records go to {bench.folder}"),
        soft_wrap=True,
    )


def _layers(config: dict[str, Any]) -> str:
    found = []
    for role, runtime in config["runtimes"].items():
        layer = runtime.get("token_layer") or {}
        name = layer if isinstance(layer, str) else layer.get("algorithm", "none")
        if name != "none":
            tokens = "" if isinstance(layer, str) or not layer.get("tokens") else f" {layer['tokens']}"
            found.append(f"{role} {name}{tokens}")
    return ", ".join(found)


def report_of(bench: Bench) -> Report:
    """Of all records in its folder."""
    from lr_sglang.results import collection
    from lr_sglang.results import report as reports

    return reports.make(collection.read([bench.folder]))


def result(bench: Bench, made: Report, display: Display, more: Table | None = None) -> None:
    """The tables of the report, one more at their end, and where there are pictures."""
    if display.as_json:
        from lr_sglang.results import formats

        display.out.file.write(formats.as_json(made))
        return
    from lr_sglang.cli.report import show

    if more is not None:
        made.tables.append(more)
    show(made, display.out)
    display.note(f"records: {bench.folder}")
    again = f"lr-sglang report {bench.folder}"
    display.note(f"plots: {again} --plots {bench.folder / 'plots'}")
    display.note(f"a page: lr-sglang view {bench.folder} --output {bench.folder / 'view.html'}")
