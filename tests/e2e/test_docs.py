"""Commands of the pages that need servers, run as they stand there, on the session's servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from lr_sglang.config import ROLES
from tests.commands import ROOT, Command, commands
from tests.e2e.conftest import Pocket, full

PAGE = "docs/getting-started.md"
RECORDS = ("run", "report")
FEW = 1  # question, in place of the ten that the page asks for


def runnable(one: Command) -> bool:
    """With records or a question, and on the pocket deployment (--attach needs one that is
    launched).
    """
    return (
        one.page == PAGE
        and not one.title
        and one.arguments[0] in RECORDS
        and "--attach" not in one.arguments
    )


def test_a_first_hour(pocket: Pocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Getting started, from top to bottom in one folder. Variables say where the servers are.

    All is as on the page but the number of questions, unless in the full run. The commands run in
    this process, which need not import everything again (test_run_cli.py has some in processes of
    their own).
    """
    shown = [one for one in commands() if one.words[0] == "lr-sglang" and runnable(one)]
    assert [one.arguments[0] for one in shown] == ["run", "run", "report", "report", "run"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for role in ROLES:
        monkeypatch.setenv(f"LR_SGLANG_RUN_{role}".upper(), pocket.fleet.urls[role])
    for one in shown:
        arguments = (
            one.arguments
            if full
            else [str(FEW) if word == "10" else word for word in one.arguments]
        )
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, f"{one}\n{done.output}"
        assert done.stdout.strip(), f"{one} says nothing"
    first = [
        json.loads(line)
        for line in (tmp_path / "runs/first/records.jsonl").read_text("utf-8").splitlines()
    ]
    assert {record["mode"] for record in first} == {"autoregressive", "lookahead"}
    assert all(record["error"] is None for record in first)
    assert len(first) == 2 * (10 if full else FEW)
    assert (tmp_path / "runs/first/page.html").is_file()
