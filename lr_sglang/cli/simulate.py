"""``lr-sglang simulate``: simulated runtimes as servers."""

from __future__ import annotations

import json as json_format
from typing import Any

import click

from lr_sglang.cli.options import as_json, per_role
from lr_sglang.cli.simulation import simulation, simulation_of
from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.sglang_api.light_import import leave_torch_out


@click.command()
@simulation
@click.option("--role", type=click.Choice(ROLES), multiple=True, help="Which to serve.  [default: all three]")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65533), default=31000, help="Of the first; 0: any free ones.")
@per_role("--fault", click.STRING, "FAULT", "Such as hang, draft=fail:share=0.1 or target=late:seconds=2,times=3.")
@as_json
def simulate(role: tuple[str, ...], host: str, port: int, json: bool, **given: Any) -> None:
    """Serves runtimes that wait instead of computing, for trying everything with no model.

    They speak SGLang's /generate, /abort_request, /health, /server_info and more, and /v1. Their texts mean nothing;
    a share of the drafts agrees, as --alpha says. Faults are late, fail, busy, hang, die and garbage, with share,
    times, after and seconds; POST /faults orders one while they run, DELETE /faults ends them all.

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


def _faults(given: tuple[tuple[str | None, str], ...], roles: tuple[str, ...]) -> dict[str, list[Any]]:
    from lr_sglang.simulated.faults import Fault

    faults: dict[str, list[Any]] = {name: [] for name in roles}
    for role, text in given:
        if role is not None and role not in faults:
            raise ConfigError(f"--fault {role}={text}: the {role} is not served", hint=f"--role {role}")
        for name in [role] if role else roles:
            faults[name].append(Fault.parse(text))
    return faults
