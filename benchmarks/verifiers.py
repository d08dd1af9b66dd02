"""Measures verifiers on the same problems: acceptance, precision and cost.

    python -m benchmarks.verifiers --questions 50 --verifier judge --verifier likelihood:min:-3
    python -m benchmarks.verifiers --verifier judge --schedule async --schedule sync

The columns of the paper's Table 2 (alpha and accuracy), and a comparison of verdicts with the
truth: for pocket problems the meaning of a step is known (its equation,
``tools.pocket.meaning.meaning``). Precision is the share of accepted pairs that mean the same,
recall the share of pairs with the same meaning that are accepted. The last three columns are the
cost of an answer: its seconds, and the tokens that target and draft generated for each token of it.

The default is the sync schedule, in which no draft comes too late, so that alpha does not depend on
the machine's load.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from lr_sglang import tasks
from lr_sglang.api.runner import Runner
from lr_sglang.bench.servers import Caches
from lr_sglang.cli import options
from lr_sglang.cli.settings import settle
from lr_sglang.config import Limits, Lookahead
from lr_sglang.results.record import Record
from lr_sglang.results.statistics import share_estimate
from lr_sglang.runtimes.connect import deployed
from lr_sglang.steps.step import NOT_COMPARED
from tests import plan
from tools.pocket.meaning import meaning

VERIFIERS = (
    *("exact", "random:0.5", "judge", "score:7", "score:9", "likelihood:mean:-0.3"),
    *("likelihood:min:-3", "likelihood:min:-2.5", "likelihood:min:-2"),
)
NOT_ITS_OWN = (*NOT_COMPARED, "ending")


def pairs(records: list[Record]) -> Iterator[tuple[bool, bool, float, str]]:
    """For every pair with a verdict: accepted, same meaning, seconds, who decided."""
    for record in records:
        for step in record["steps"]:
            for text, verdict in zip(step["draft_texts"], step["verdicts"], strict=True):
                if (
                    verdict is None
                    or verdict["failed"]
                    or verdict["by"] in NOT_ITS_OWN
                    or step["target_text"] is None
                ):
                    continue
                ours, theirs = meaning(step["target_text"]), meaning(text)
                same = ours is not None and ours == theirs
                yield verdict["accepted"], same, verdict["seconds"], verdict["by"]


def row(name: str, records: list[Record]) -> dict[str, Any]:
    """One line of the table."""
    seen, ended = list(pairs(records)), [r for r in records if r["error"] is None]
    right = share_estimate({r["question_id"]: (bool(r["correct"]), 1) for r in records})
    judged = sum(r["judged"] for r in records)
    both = sum(accepted and same for accepted, same, *_ in seen)
    asked = [seconds for *_, seconds, by in seen if by != "identical"]
    return {
        "verifier": name,
        "alpha": sum(r["accepted"] for r in records) / judged if judged else None,
        "pairs": len(seen),
        "same": sum(same for _, same, *_ in seen),
        "precision": both / max(1, sum(accepted for accepted, *_ in seen)),
        "recall": both / max(1, sum(same for _, same, *_ in seen)),
        "accuracy": right.value if right else None,
        "interval": [right.low, right.high] if right else None,
        "verdict_ms": 1000 * statistics.median(asked) if asked else 0.0,
        "certain": sum(
            v["by"] == "certain" for r in records for s in r["steps"] for v in s["verdicts"] if v
        ),
        "seconds": statistics.mean(r["seconds"] for r in ended) if ended else None,
        "target_tokens": _generated(records, "target"),
        "draft_tokens": _generated(records, "draft"),
    }


def _generated(records: list[Record], role: str) -> float:
    return sum(r["tokens"][role]["generated"] for r in records) / sum(
        r["tokens"]["used"] for r in records
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| verifier | alpha | precision | recall | pairs | accuracy (95 %) | ms a verdict | s "
        "an answer"
        " | target tokens | draft tokens |",
        "|-" * 10 + "|",
    ]
    for r in rows:
        low, high = r["interval"]
        lines.append(
            f"| `{r['verifier']}` | {r['alpha']:.2f} | {r['precision']:.3f} | "
            f"{r['recall']:.3f} | {r['pairs']}"
            f" | {r['accuracy']:.2f} ({low:.2f} to {high:.2f}) | {r['verdict_ms']:.1f} | "
            f"{r['seconds']:.2f}"
            f" | {r['target_tokens']:.2f} | {r['draft_tokens']:.2f} |"
        )
    return "\n".join(lines)


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option("--questions", default=50, show_default=True)
@click.option("--verifier", "verifiers", multiple=True, default=VERIFIERS, show_default=True)
@click.option("--schedule", "schedules", multiple=True, default=("sync",), show_default=True)
@click.option("--depth", type=int, help="[default: the deployment's]")
@click.option("--concurrency", default=1, show_default=True, help="Answers at a time.")
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Also write the figures here."
)
@options.runtimes
def main(
    questions: int,
    verifiers: tuple[str, ...],
    schedules: tuple[str, ...],
    depth: int | None,
    concurrency: int,
    output: Path | None,
    **given: Any,
) -> None:
    settled = settle(given)
    chosen = tasks.load("pocket", limit=questions + 1)
    rows = []
    needed, caches = (
        settled.needed(["lookahead"], concurrency),
        Caches(lambda text: click.echo(text, err=True)),
    )
    with tempfile.TemporaryDirectory() as logs, deployed(needed, Path(logs)) as roles:
        for schedule in schedules:
            for verifier in verifiers:
                look: Lookahead = settled.deployment.lookahead.with_options(
                    schedule=schedule, verifier=verifier, depth=depth
                )
                settings = settled.with_settings(lookahead=look, limits=Limits(max_tokens=400))
                runner = Runner(roles, settings, concurrency)
                list(runner.run(plan(chosen[:1], ["lookahead"])))  # for warm-up
                caches.empty(roles)  # the verifier before has had the same questions
                records = list(runner.run(plan(chosen[1:], ["lookahead"])))
                rows.append(
                    row(f"{verifier} ({schedule})" if len(schedules) > 1 else verifier, records)
                )
                click.echo(table(rows[-1:]).splitlines()[-1], err=True)
    sys.stdout.write(table(rows) + "\n")
    if output:
        output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
