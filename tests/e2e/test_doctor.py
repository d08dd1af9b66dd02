"""``lr-sglang doctor`` on real servers that lack nothing."""

import json
from typing import Any

import pytest

from lr_sglang.engine.client import Client
from tests.called import called
from tests.e2e.conftest import Pocket
from tests.serving import until_idle

# Whose status depends on how busy the machine is.
TIMED = ("milliseconds", "c1", "acceptance")


def test_servers_that_lack_nothing(pocket: Pocket, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, generate = list[int](), Client.generate

    async def counted(self: Client, payload: dict[str, Any], *given: Any) -> dict[str, Any]:
        reply = await generate(self, payload, *given)
        tokens.append(len(payload["input_ids"]) + len(reply["output_ids"]))
        return reply

    monkeypatch.setattr(Client, "generate", counted)
    found = json.loads(called("doctor", *pocket.attach, "--json").stdout)
    lines = (line for line in found["lines"] if line["name"] not in TIMED)
    assert found["ok"] and not [line for line in lines if line["status"] != "ok"]
    assert [one["mode"] for one in found["modes"]] == ["autoregressive", "lookahead", "lossless"]
    assert all(one["pace"] > 0 for one in found["modes"]) and found["command"]
    assert 0 < sum(tokens) < 20_000
    until_idle(pocket.fleet.urls)
