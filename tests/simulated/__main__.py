"""Serves simulated runtimes: ``python -m tests.simulated --alpha 0.63 --step-seconds 1``."""

import json
from typing import Any

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

import click  # noqa: E402

from lr_sglang.config import ROLES  # noqa: E402
from tests.simulated.options import simulation, simulation_options  # noqa: E402
from tests.simulated.server import serve  # noqa: E402


@click.command()
@simulation_options
@click.option("--role", type=click.Choice(ROLES), multiple=True, default=ROLES)
@click.option("--port", default=0, help="Of the first role; 0: any free ones.")
def main(role: tuple[str, ...], port: int, **given: Any) -> None:
    """Serves target, draft and judge, or some of them; writes their URLs as a line of JSON."""

    ready = lambda urls: click.echo(json.dumps({"urls": urls}))
    serve(simulation(**given), {name: port and port + n for n, name in enumerate(role)}, ready)


if __name__ == "__main__":
    main()
