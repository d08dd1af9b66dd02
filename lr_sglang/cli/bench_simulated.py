"""``lr-sglang bench simulated``: the controller over simulated runtimes."""

from __future__ import annotations

import json as json_format
from typing import Any

import click
from rich.table import Column, Table

from lr_sglang.cli import options
from lr_sglang.cli.simulation import simulation, simulation_of
from lr_sglang.sglang_api.light_import import leave_torch_out
from lr_sglang.verifiers import verifier_registry


@click.command()
@simulation
@click.option("--depth", type=int, default=6, help="Steps to look ahead.")
@click.option("--schedule", type=click.Choice(["async", "sync"]), default="async", help="Overlap, or not.")
@click.option(
    "--verifier",
    type=click.Choice(["judge", "exact"]),
    help="exact goes with --same-words.  [default: judge, or exact with --same-words or --judge-seconds 0]",
)
@click.option("--questions", type=click.IntRange(min=1), default=1, help="Answers at once.")
@click.option("--processes", type=click.IntRange(min=1), default=1, help="That share them.")
@click.option("--http", is_flag=True, help="The runtimes are servers in other processes.")
@options.as_json
def simulated(json: bool, **given: Any) -> None:
    """Measures the controller over simulated runtimes, with no model.

    The programs, SGLang's interpreter, the runner and the verifier are those of a real run; only what is behind the
    backend waits instead of computing. The bound is the least time that the same schedule can need for the same draws:
    efficiency is how much of it is left.

    \b
    Examples:
      lr-sglang bench simulated --alpha .63 --c1 .1 --step-seconds .2 --judge-seconds .04 --depth 6 --steps 300
      lr-sglang bench simulated --questions 64 --step-seconds 2 --steps 40
      lr-sglang bench simulated --questions 64 --step-seconds 1 --steps 20 --http
      lr-sglang bench simulated --questions 256 --step-seconds 8 --steps 20 --processes 2 --json
    """
    from lr_sglang.config import Lookahead

    if given["verifier"] is None:
        given["verifier"] = "exact" if given["same_words"] or not given["judge_seconds"] else "judge"
    given["same_words"] = given["same_words"] or given["verifier"] == "exact"
    setting = simulation_of(given)
    look = Lookahead(
        given["schedule"],
        given["depth"],
        given["width"],
        max_step_tokens=setting.model.longest + 1,  # a blank line ends each step, as almost all of real models
        verifier=given["verifier"],
    )
    if not verifier_registry.runs_models(look.verifier):
        leave_torch_out()
    from lr_sglang.simulated.measure import measure, report

    figures = report(setting, look, measure(setting, look, given["questions"], given["processes"], given["http"]))
    if json:
        click.echo(json_format.dumps(figures))
    else:
        _show(figures)


def _show(figures: dict[str, Any]) -> None:
    from lr_sglang.cli.display import Display

    each, bound = figures["per_step"], figures["bound"]
    rows = [
        ("speed-up", f"{figures['speedup']:.3f}x"),
        ("event-driven bound", f"{bound['event_driven']:.3f}x"),
        ("formula, long answers", f"{bound['formula']:.3f}x"),
        ("the paper's, no verdicts", f"{bound['paper']:.3f}x"),
        ("efficiency", f"{figures['efficiency']:.3f}"),
        ("  of the answers", f"{figures['efficiency_worst']:.3f} to {figures['efficiency_best']:.3f}"),
        ("seconds", f"{figures['seconds']:.2f}"),
        ("acceptance", f"{figures['alpha']:.2f}"),
        ("target branches a step", f"{each['target_branches']:.2f}"),
        ("draft branches a step", f"{each['draft_branches']:.2f}"),
        ("judge calls a step", f"{each['judge_calls']:.2f}"),
        ("CPU", f"{figures['cpu_seconds']:.2f} s, {100 * figures['cpu_share']:.1f} % of a core"),
        ("calls", f"{figures['calls']}, {figures['calls_per_second']:.1f} a second"),
        ("CPU per call", f"{figures['cpu_ms_per_call']:.2f} ms"),
        ("CPU per call of the runtimes' servers", f"{figures['servers_cpu_ms_per_call']:.2f} ms"),
        ("simulated runtimes late", f"{figures['runtimes_late_ms']:.2f} ms a call"),
        ("event loop late", f"{figures['loop_late_p99_ms']:.2f} ms or more, one time in a hundred"),
        ("threads, most", f"{figures['threads']}"),
        ("memory, most", f"{figures['megabytes']:.0f} MB, {figures['megabytes_grown']:.0f} in the second half"),
    ]
    head = Column(f"{figures['questions']} at once", justify="right")
    table = Table("", head, box=None, title="simulated runtimes", title_justify="left")
    for row in rows:
        table.add_row(*row)
    Display().show(table)
