"""``lr-sglang simulate``: simulated runtimes as servers; and ``bench simulated``: the controller
over such runtimes.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options
from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.light_import import leave_torch_out

if TYPE_CHECKING:
    from lr_sglang.simulated.simulation import Simulation

# The figures that ``bench simulated`` prints, and their formats.
FIGURES = {
    "speed-up": "{speedup:.3f}x",
    "event-driven bound": "{event_driven:.3f}x",
    "formula, long answers": "{formula:.3f}x",
    "the paper's, no verdicts": "{paper:.3f}x",
    "efficiency": "{efficiency:.3f}",
    "  of the answers": "{efficiency_worst:.3f} to {efficiency_best:.3f}",
    "seconds": "{seconds:.2f}",
    "acceptance": "{alpha:.2f}",
    "target branches a step": "{target_branches:.2f}",
    "draft branches a step": "{draft_branches:.2f}",
    "judge calls a step": "{judge_calls:.2f}",
    "CPU": "{cpu_seconds:.2f} s, {cpu_percent:.1f} % of a core",
    "calls": "{calls}, {calls_per_second:.1f} a second",
    "CPU per call": "{cpu_ms_per_call:.2f} ms",
    "CPU per call of the runtimes' servers": "{servers_cpu_ms_per_call:.2f} ms",
    "simulated runtimes late": "{runtimes_late_ms:.2f} ms a call",
    "event loop late": "{loop_late_p99_ms:.2f} ms or more, one time in a hundred",
    "threads, most": "{threads}",
    "memory, most": "{megabytes:.0f} MB, {megabytes_grown:.0f} in the second half",
}
simulation = options.together(
    click.option(
        "--alpha",
        type=options.Several(click.FLOAT, "SHARE[,SHARE]"),
        default="0.63",
        help="Drafted steps that agree; or by position.",
    ),
    click.option(
        "--trace", type=options.ANY_PATH, metavar="DIR", help="Which agree, from a run's records."
    ),
    click.option(
        "--c1", type=float, default=0.1, help="Time of a drafted step / of a target step."
    ),
    click.option("--step-seconds", type=float, default=0.2, help="Of a target step alone."),
    click.option("--judge-seconds", type=float, default=0.04, help="Of a verdict."),
    click.option("--steps", type=int, default=300, help="Of an answer."),
    click.option("--step-tokens", type=int, default=24, help="Of a step, on average."),
    click.option(
        "--spread", type=float, default=0.0, help="Of steps' lengths: standard deviation / mean."
    ),
    click.option(
        "--same-words",
        is_flag=True,
        help="Drafts that agree are the very same: no judge is needed.",
    ),
    click.option(
        "--batch-slowdown", type=float, default=0.0, help="What each further request costs others."
    ),
    click.option(
        "--page-in",
        type=float,
        default=0.0,
        help="Seconds that each step's request reads before it writes.",
    ),
    click.option(
        "--prefill",
        type=float,
        default=0.05,
        help="Time of a drafted step that is only weighed / of writing it.",
    ),
    click.option(
        "--auc",
        type=float,
        default=0.5,
        help="How well a draft's confidence tells what agrees: 0.5 is not at all.",
    ),
    click.option(
        "--slots", type=int, help="Requests that a runtime serves at a time.  [default: any number]"
    ),
    click.option("--width", type=int, default=1, help="Drafted alternatives per step."),
    click.option("--seed", type=int, default=0, help="Of everything that is drawn."),
)


def simulation_of(given: dict[str, Any]) -> Simulation:
    """The simulation that the options describe.

    Raises:
        ConfigError: an invalid value.
        RecordError: there are no records to trace.
    """
    from lr_sglang.simulated.model import Model
    from lr_sglang.simulated.simulation import WRITERS, Simulation

    same = {name: given[name] for name in ("alpha", "steps", "spread", "auc", "width", "seed")}
    trace = traced(given["trace"]) if given["trace"] else ()
    model = Model(
        trace=trace, tokens=given["step_tokens"], own_words=not given["same_words"], **same
    )
    names = ("step_seconds", "c1", "judge_seconds", "slots", "prefill")
    times = {
        "slowdown": given["batch_slowdown"],
        "curves": given.get("curves", {}),
        "page_in": given["page_in"],
    }
    if not isinstance(given["page_in"], dict):
        times["page_in"] = dict.fromkeys(WRITERS, given["page_in"])
    return Simulation(model, **{name: given[name] for name in names}, **times)


def traced(folder: Path) -> tuple[tuple[bool, ...], ...]:
    """Which drafts were accepted in a run, by answer and position.

    Raises:
        RecordError: there is no such run.
        ConfigError: it did not look ahead.
    """
    from lr_sglang.cli import runs

    with runs.complete(folder):
        rows = [
            tuple(step["source"] == "draft" for step in r["steps"])
            for r in runs.read(folder)
            if r["judged"]
        ]
    if not rows:
        raise ConfigError(
            f"{folder} has no answer that looked ahead", hint="give a run of mode lookahead"
        )
    return tuple(rows)


@click.command()
@simulation
@click.option(
    "--role", type=click.Choice(ROLES), multiple=True, help="Which to serve.  [default: all three]"
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65533), default=31000, help="Of the first; 0: any free ones."
)
@options.per_role(
    "--fault",
    click.STRING,
    "FAULT",
    "Such as hang, draft=fail:share=0.1 or target=late:seconds=2,times=3.",
)
@options.as_json
def simulate(role: tuple[str, ...], host: str, port: int, json: bool, **given: Any) -> None:
    """Serves runtimes that wait instead of computing, for trying everything with no model.

    They speak SGLang's /generate, /abort_request, /health, /server_info and more, and /v1. Their
    texts mean nothing; a share of the drafts agrees, as --alpha says. Faults are late, fail, busy,
    hang, die and garbage, with share, times, after and seconds; POST /faults orders one while they
    run, DELETE /faults ends them all.

    \b
    Examples:
      lr-sglang simulate --alpha 0.63 --step-seconds 1
      lr-sglang simulate --role draft --port 31001 --fault late:share=0.1,seconds=3
      curl -X POST localhost:31002/faults -d '{"kind": "hang", "times": 2}'
    """
    setting = simulation_of(given)
    roles = role or ROLES
    faults = _faults(given["fault"], roles)
    leave_torch_out()
    from lr_sglang.simulated.serving import serve

    def ready(urls: dict[str, str]) -> None:
        if json:
            click.echo(json_format.dumps({"simulated": True, "urls": urls}))
            return
        for name, url in urls.items():
            click.echo(f"simulated {name}: {url}")
        if len(urls) == len(ROLES):
            attach = " ".join(f"--{name} {url}" for name, url in urls.items())
            click.echo(f'Try: lr-sglang run "How long is a step?" {attach}', err=True)

    serve(setting, {name: port and port + n for n, name in enumerate(roles)}, host, faults, ready)


def _faults(
    given: tuple[tuple[str | None, str], ...], roles: tuple[str, ...]
) -> dict[str, list[Any]]:
    from lr_sglang.simulated.faults import Fault

    faults: dict[str, list[Any]] = {name: [] for name in roles}
    for role, text in given:
        if role is not None and role not in faults:
            raise ConfigError(
                f"--fault {role}={text}: the {role} is not served", hint=f"--role {role}"
            )
        for name in [role] if role else roles:
            faults[name].append(Fault.parse(text))
    return faults


@click.command()
@simulation
@click.option("--depth", type=int, default=6, help="Steps to look ahead.")
@click.option(
    "--schedule", type=click.Choice(["async", "sync"]), default="async", help="Overlap, or not."
)
@click.option(
    "--verifier",
    type=click.Choice(["judge", "exact"]),
    help="exact goes with --same-words.  [default: judge, or exact with --same-words or "
    "--judge-seconds 0]",
)
@click.option("--questions", type=options.AT_LEAST_1, default=1, help="Answers at once.")
@click.option("--processes", type=options.AT_LEAST_1, default=1, help="That share them.")
@click.option("--http", is_flag=True, help="The runtimes are servers in other processes.")
@click.option(
    "--times",
    type=options.FILE,
    metavar="FILE.json",
    help="Times of real runtimes, measured one by one, in place of --step-seconds, --c1, "
    "--judge-seconds, --page-in "
    "and --batch-slowdown, as far as these are not given.",
)
@click.option(
    "--context", type=options.AT_LEAST_1, default=1024, help="Tokens before a step, for --times."
)
@options.as_json
@click.pass_context
def simulated(context: click.Context, /, json: bool, times: Path | None, **given: Any) -> None:
    """Measures the controller over simulated runtimes, with no model.

    The programs, SGLang's interpreter, the runner and the verifier are those of a real run; only
    what is behind the backend waits instead of computing. The bound is the least time that the same
    schedule can need for the same draws: efficiency is how much of it is left.

    \b
    Examples:
      lr-sglang bench simulated --alpha .63 --c1 .1 --step-seconds .2 --judge-seconds .04 --depth 6 --steps 300
      lr-sglang bench simulated --questions 64 --step-seconds 2 --steps 40
      lr-sglang bench simulated --questions 64 --step-seconds 1 --steps 20 --http
      lr-sglang bench simulated --questions 256 --step-seconds 8 --steps 20 --processes 2 --json
      lr-sglang bench simulated --times times.json --steps 40
    """
    from lr_sglang.config import Lookahead

    used = []
    if times is not None:
        from lr_sglang.simulated.simulation import role_times

        for name, value in role_times(times, given["step_tokens"], given["context"]).items():
            option = {"curves": "batch_slowdown"}.get(name, name)
            if context.get_parameter_source(option) is click.core.ParameterSource.DEFAULT:
                given[name] = value
                used.append(name)

    if given["verifier"] is None:
        given["verifier"] = (
            "exact" if given["same_words"] or not given["judge_seconds"] else "judge"
        )
    given["same_words"] = given["same_words"] or given["verifier"] == "exact"
    setting = simulation_of(given)
    look = Lookahead(
        schedule=given["schedule"],
        depth=given["depth"],
        width=given["width"],
        max_step_tokens=setting.model.longest
        + 1,  # a blank line ends each step, as almost always in real models
        verifier=given["verifier"],
    )
    leave_torch_out()
    from lr_sglang.simulated.measure import measure, report

    figures = report(
        setting, look, measure(setting, look, given["questions"], given["processes"], given["http"])
    )
    figures["times"] = str(times) if used else None
    figures["times_used"] = used
    if json:
        click.echo(json_format.dumps(figures))
    else:
        _show(figures)


def _show(found: dict[str, Any]) -> None:
    from lr_sglang.cli.display import Display
    from lr_sglang.cli.formats import grid

    flat = {**found, **found["per_step"], **found["bound"], "cpu_percent": 100 * found["cpu_share"]}
    head = ("simulated runtimes", f"{found['questions']} at once")
    Display().show(
        grid(head, [(name, form.format(**flat)) for name, form in FIGURES.items()], head[:1])
    )
    if found["times"]:
        click.echo(
            f"Each runtime is as fast as it was alone, by {found['times']}: "
            f"{', '.join(found['times_used'])}"
        )
