"""``lr-sglang calibrate``: thresholds for a cascade of verifiers, from the records of runs."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lr_sglang.errors import RecordError

if TYPE_CHECKING:
    from lr_sglang.results.calibration import Calibration
    from lr_sglang.results.record import Record


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    type=click.FloatRange(0.5, 1.0),
    default=0.99,
    show_default=True,
    help="Share of the pairs decided by a cheap verifier alone that must be right.",
)
@click.option(
    "--reference",
    type=click.Choice(["last", "pocket"]),
    default="last",
    show_default=True,
    help="What is right: the verdict of the cascade's last stage, or the pocket problems' own ground truth.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.json", help="Also kept here.")
@click.option("--json", is_flag=True, help="JSON on standard output, and nothing else there.")
def calibrate(folders: tuple[Path, ...], precision: float, reference: str, output: Path | None, json: bool) -> None:
    """Chooses when each cheap verifier of a cascade may decide alone.

    DIR... are folders of runs that were made with a list of stages, which asks all of them about every pair. The file
    that is written goes with --verifier cascade:FILE.json.

    \b
    Examples:
      lr-sglang run --task pocket --verifier cascade:likelihood:min,judge --output runs/measured
      lr-sglang calibrate runs/measured --precision 0.98 --output cascade.json
      lr-sglang run --task pocket --verifier cascade:cascade.json
    """
    from lr_sglang.pocket.problems import meaning
    from lr_sglang.results import calibration
    from lr_sglang.results.store import RECORDS, read_records

    def read(folder: Path) -> list[Record]:
        path = folder / RECORDS if folder.is_dir() else folder
        try:
            return read_records(path)[0]
        except OSError as error:
            hint = f"give the folder of a run, which has {RECORDS}"
            raise RecordError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error

    def same(target: str, draft: str) -> bool:
        return meaning(target) is not None and meaning(target) == meaning(draft)

    records = [record for folder in folders for record in read(folder)]
    found = calibration.calibrate(records, precision, same if reference == "pocket" else None)
    text = json_format.dumps(found.to_dict(), indent=1)
    if output is not None:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"{output} cannot be written: {error.strerror}", hint="give another --output") from error
    click.echo(text if json else _table(found))
    if output is not None and not json:
        click.echo(f"use it with --verifier cascade:{output}")


def _table(found: Calibration) -> str:
    lines = [f"precision {found.precision:g}; what no stage is sure of goes to {found.last}"]
    for row in (stage.to_dict() for stage in found.stages):
        lines.append(f"{row['verifier']}: {row['pairs']} pairs, {row['unsure']} left to the next stage")
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
