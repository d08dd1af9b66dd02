"""The units of examples/operations with the pocket models: SGLang's own servers, as their units start
them, and started again.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lr_sglang.config import ROLES
from tests import FULL
from tests.operations import KEY, Program, Unit, answers, endpoint, units
from tests.processes.mortal import Client, authorized
from tests.serving import HTTP, free_port, until

START = 280.0  # seconds until three servers are up on two cores
QUESTION = "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many toys does Ava have now?"


@pytest.mark.skipif(not FULL, reason="three servers more, one of them twice: only in test-full")
@pytest.mark.timeout(900)
def test_units_run_real_servers_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    ports = {role: free_port() for role in ROLES}
    table = "".join(
        f'[runtimes.{role}]\nmodel = "pocket:{role}"\nport = {port}\n'
        for role, port in ports.items()
    )
    (tmp_path / "pocket.toml").write_text(table)
    (tmp_path / "keys.txt").write_text(KEY + "\n")
    (tmp_path / "keys.txt").chmod(0o600)
    parts: dict[str, Program] = {}
    for role, service in units(tmp_path / "pocket.toml", tmp_path).items():
        up = partial(answers, f"http://127.0.0.1:{ports[role]}/model_info")
        parts[role] = Program(service.argv, tmp_path / f"{role}.log", up, service.env)
    written = {f"http://127.0.0.1:{30000 + n}": ports[role] for n, role in enumerate(ROLES)}
    port = free_port()
    parts["endpoint"] = endpoint(tmp_path, 0, port, written)
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        made: dict[str, Unit] = {}
        for name, part in parts.items():
            part.live()
            made[name] = Unit(part)
            stack.callback(made[name].stop)
        # the endpoint ends, and is started again, until all its servers are there
        until(lambda: all(part.up() for part in parts.values()), START, 0.5)
        models = HTTP.get(f"{url}/v1/models", headers=authorized(KEY), timeout=10).json()
        asked = {"model": models["data"][0]["id"], "lookahead": {"mode": "lookahead"}}

        def answered() -> bool:
            heard = Client(url, QUESTION, stream=False, more=asked, key=KEY).end(120)
            assert heard.status in (200, 502, 503), heard
            return heard.status == 200 and not heard.about["degraded"] and "17" in heard.text

        until(answered, 120, 0.5)
        made["target"].part.send(signal.SIGKILL)
        until(lambda: made["target"].starts > 1 and parts["target"].up(), START, 0.5)
        until(answered, 120, 0.5)
