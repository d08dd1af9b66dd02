"""``lr-sglang calibrate``: thresholds for a cascade of verifiers, and what the draft's confidence
is worth, from the records of runs."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lr_sglang.cli import options

if TYPE_CHECKING:
    from lr_sglang.results.calibration import Calibration, Confidence


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=options.ANY_PATH)
@click.option(
    "--precision",
    type=click.FloatRange(0.5, 1.0),
    default=0.99,
    help="Share of the pairs decided by a cheap verifier alone that must be right.",
)
@click.option(
    "--reference",
    type=click.Choice(["last", "pocket"]),
    default="last",
    help="What is right: the verdict of the cascade's last stage, or the pocket problems' own "
    "ground truth.",
)
@click.option("--output", type=options.FILE, metavar="FILE.json", help="Also kept here.")
@options.as_json
def calibrate(
    folders: tuple[Path, ...], precision: float, reference: str, output: Path | None, json: bool
) -> None:
    """Chooses when each cheap verifier of a cascade may decide alone, and finds what the draft's
    confidence is worth.

    DIR... are folders of runs that were made with a list of stages, which asks all of them about
    every pair, or with --gate, which asks the draft how sure it is; or with both. The file that is
    written goes with --verifier cascade:FILE.json, and with --gate P --calibration FILE.json.

    \b
    Examples:
      lr-sglang run --task pocket --verifier cascade:likelihood:min,judge --output runs/measured
      lr-sglang calibrate runs/measured --precision 0.98 --output cascade.json
      lr-sglang run --task pocket --verifier cascade:cascade.json
      lr-sglang run --task pocket --gate 0.01 --output runs/sure
      lr-sglang calibrate runs/sure --output sure.json
      lr-sglang run --task pocket --gate 0.075 --calibration sure.json
    """
    from lr_sglang.cli import runs
    from lr_sglang.pocket.meaning import same_meaning
    from lr_sglang.results import calibration
    from lr_sglang.results.store import writing

    records = [record for folder in folders for record in runs.read(folder)]
    found = None
    with runs.complete(*folders):
        gate = calibration.confidence(records)
        if gate is None or calibration.has_cascade(records):
            found = calibration.calibrate(
                records, precision, same_meaning if reference == "pocket" else None
            )
    table = found.to_dict() if found else {}
    text = json_format.dumps(table | ({"gate": gate.to_dict()} if gate else {}), indent=1)
    if output is not None:
        with writing(output):
            output.write_text(text + "\n", encoding="utf-8")
    if json:
        click.echo(text)
        return
    if found:
        click.echo(_table(found))
    if gate:
        click.echo(_gate(gate))
    if output is not None:
        ways = [f"--verifier cascade:{output}"] if found else []
        click.echo(
            "use it with "
            + " and ".join([*ways, *([f"--gate 0.075 --calibration {output}"] if gate else [])])
        )


def _gate(found: Confidence) -> str:
    auc = "only one kind" if found.auc is None else f"AUC {found.auc:.2f} (0.5 says nothing)"
    share = found.accepted / found.curve.samples
    return (
        f"the draft's confidence: {found.curve.samples} verdicts, {100 * share:.0f} % "
        f"accepted, {auc}"
    )


def _table(found: Calibration) -> str:
    lines = [f"precision {found.precision:g}; what no stage is sure of goes to {found.last}"]
    for row in found.stages:
        lines.append(
            f"{row['verifier']}: {row['pairs']} pairs, {row['unsure']} left to the next stage"
        )
        for what, bound in (("accepted", "accept_above"), ("rejected", "reject_below")):
            if row[bound] is None:
                lines.append(f"  {what}: none, it is never that precise")
                continue
            low, high = row[f"{what}_interval"] or (0.0, 1.0)
            sign = ">=" if what == "accepted" else "<"
            lines.append(
                f"  {what} where the score is {sign} {row[bound]:.4g}: {row[what]},"
                f" {row[what + '_rightly']} rightly (95 %: {low:.3f} to {high:.3f})"
            )
    return "\n".join(lines)
