"""``lr-sglang doctor`` on real servers: on those that lack nothing, and on one that lacks much."""

import json
from pathlib import Path
from typing import Any

import pytest

from lr_sglang.engine.client import Client
from lr_sglang.runtimes import launch
from tests import FULL
from tests.called import called
from tests.e2e.conftest import Pocket
from tests.serving import in_flight

# Whose status depends on how busy the machine is.
TIMED = ("milliseconds", "c1", "acceptance")


def doctor(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What it says as JSON."""
    return json.loads(called("doctor", *arguments, "--json", code=code).stdout)


def not_well(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The lines that are not ok, by role and name."""
    lines = (line for line in found["lines"] if line["name"] not in TIMED)
    return {(line["role"], line["name"]): line for line in lines if line["status"] != "ok"}


def test_servers_that_lack_nothing(pocket: Pocket, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, generate = list[int](), Client.generate

    async def counted(self: Client, payload: dict[str, Any], *given: Any) -> dict[str, Any]:
        reply = await generate(self, payload, *given)
        tokens.append(len(payload["input_ids"]) + len(reply["output_ids"]))
        return reply

    monkeypatch.setattr(Client, "generate", counted)
    found = doctor(*pocket.attach)
    assert found["ok"] and not not_well(found)
    assert [one["mode"] for one in found["modes"]] == ["autoregressive", "lookahead", "lossless"]
    assert all(one["pace"] > 0 for one in found["modes"]) and found["command"]
    assert 0 < sum(tokens) < 20_000
    assert not any(in_flight(pocket.fleet.urls).values())


@pytest.mark.skipif(not FULL, reason="a server of its own: only in test-full")
def test_a_server_without_a_prefix_cache_and_with_one_slot(pocket: Pocket, tmp_path: Path) -> None:
    alone = pocket.fleet.deployment.runtimes["target"].replace(
        extra={"disable-radix-cache": True}, max_running_requests=1
    )
    lacking = pocket.fleet.deployment.replace(runtimes={"target": alone}, shared={})
    with launch(lacking, tmp_path, timeout=200) as fleet:
        others = [
            word for role in ("draft", "judge") for word in (f"--{role}", pocket.fleet.urls[role])
        ]
        found = doctor("--target", fleet.urls["target"], *others, code=1)
    lines = not_well(found)
    assert not found["ok"]
    assert lines["target", "room"]["status"] == "fault"
    assert lines["target", "reuse"]["found"].startswith("0.00")
    assert "--disable-radix-cache" in lines["target", "reuse"]["advice"]
    assert {role for role, _ in lines} == {"target"}
