"""The page of commands is what the commands say, and every option has help and a variable that
works.
"""

import importlib.util
from pathlib import Path

import click
import pytest

from lr_sglang.cli import cli

ROOT = Path(__file__).parents[2]


def _script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cli_page = _script("cli_page")
COMMANDS = {path: command for path, command, _ in cli_page.walk(cli)}
OPTIONS = [
    (path, option) for path, command in COMMANDS.items() for option in cli_page.options(command)
]
IDS = [f"{' '.join(path)} {cli_page.long_name(option)}" for path, option in OPTIONS]


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_every_option_has_help(path, option):
    assert option.help, "say what it does, or what its default is"


def test_several_values_of_a_variable_have_spaces_between_them(monkeypatch):
    run = COMMANDS[("run",)]
    monkeypatch.setenv("LR_SGLANG_RUN_MODE", "autoregressive lookahead")
    monkeypatch.setenv("LR_SGLANG_RUN_DEPTH", "3")
    monkeypatch.setenv("LR_SGLANG_RUN_OPTION", "lookahead.width=2 sampling.top_k=20")
    with click.Context(cli, info_name="lr-sglang", auto_envvar_prefix=cli_page.PREFIX) as parent:
        context = run.make_context("run", ["how many?"], parent=parent)
        assert context.params["mode"] == ("autoregressive", "lookahead")
        assert context.params["depth"] == 3
        assert context.params["option"] == {"lookahead": {"width": 2}, "sampling": {"top_k": 20}}
        # The command line goes before it.
        context = run.make_context("run", ["how many?", "--mode", "sd"], parent=parent)
        assert context.params["mode"] == ("sd",)
