"""The page of commands is what the commands say, and every option has help and a variable that
works.
"""

import importlib.util
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli, unknown_variables
from lr_sglang.cli.assignments import Assignment

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


def test_a_change_of_an_option_changes_the_page(monkeypatch):
    before = cli_page.page()
    option = next(
        one for one in cli.get_command(click.Context(cli), "run").params if one.name == "depth"
    )
    monkeypatch.setattr(option, "help", "Something else.")
    assert cli_page.page() != before
    assert "Something else." in cli_page.page()


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_every_option_has_help(path, option):
    assert option.help, "say what it does, or what its default is"


def _value(option):
    """Some text that the option's type takes; another one than its default."""
    kind = option.type
    if isinstance(kind, Assignment):
        return "lookahead.width=2"
    if option.is_flag:
        return "0" if option.default is True else "1"
    if isinstance(kind, click.Choice):
        return next(one for one in reversed(kind.choices) if one != option.default)
    if isinstance(kind, click.FloatRange | click.IntRange):
        return str((kind.min or 0) + 1 if kind.max is None else kind.max)
    return "3"


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_the_variable_on_the_page_is_read(path, option, monkeypatch, tmp_path):
    """The name as it is derived on the page, through the whole chain of groups."""
    value = str(tmp_path / "x") if isinstance(option.type, click.Path) else _value(option)
    monkeypatch.setenv(cli_page.variable(path, option), value)
    for name in [name for name in os.environ if name.startswith("LR_SGLANG_")]:
        if name != cli_page.variable(path, option):
            monkeypatch.delenv(name)
    context = click.Context(cli, info_name="lr-sglang", auto_envvar_prefix=cli_page.PREFIX)
    for depth in range(1, len(path) + 1):
        command = COMMANDS[path[:depth]]
        context = click.Context(command, info_name=path[depth - 1], parent=context)
    assert option.resolve_envvar_value(context) == value
    given, source = option.consume_value(context, {})
    assert source is click.core.ParameterSource.ENVIRONMENT
    context.set_parameter_source(option.name, source)
    assert option.process_value(context, given) not in (None, (), option.default)


def test_several_values_of_a_variable_have_spaces_between_them(monkeypatch):
    run = COMMANDS[("run",)]
    monkeypatch.setenv("LR_SGLANG_RUN_MODE", "autoregressive lookahead")
    with click.Context(cli, info_name="lr-sglang", auto_envvar_prefix=cli_page.PREFIX) as parent:
        context = run.make_context("run", ["how many?"], parent=parent)
        assert context.params["mode"] == ("autoregressive", "lookahead")
        # The command line goes before it.
        context = run.make_context("run", ["how many?", "--mode", "sd"], parent=parent)
        assert context.params["mode"] == ("sd",)


def test_options_that_take_several_split_at_spaces():
    """Paths would split at colons, and the page does not say so."""
    several = [(path, one) for path, one in OPTIONS if one.multiple]
    assert several
    assert not [
        (path, one.name) for path, one in several if one.type.envvar_list_splitter is not None
    ]


def test_names_of_options_say_what_the_page_says():
    """No option is called otherwise in the code, which is what click makes the variable of."""
    assert [one.name for _, one in OPTIONS] == [
        cli_page.long_name(one).removeprefix("--").replace("-", "_") for _, one in OPTIONS
    ]


def test_a_variable_that_is_no_option_is_warned_of(monkeypatch):
    monkeypatch.setenv("LR_SGLANG_PLAN_ALHPA", "0.5")
    monkeypatch.setenv("LR_SGLANG_PLAN_C1", "0.1")
    done = CliRunner().invoke(cli, ["plan", "--alpha", "0.6"])
    assert done.exit_code == 0
    assert done.stderr == (
        "Warning: LR_SGLANG_PLAN_ALHPA is no option of plan, and changes nothing; did you mean "
        "LR_SGLANG_PLAN_ALPHA?\n"
    )


def test_variables_of_every_option_are_known(monkeypatch):
    for path, option in OPTIONS:
        monkeypatch.setenv(cli_page.variable(path, option), "1")
    for path, command in COMMANDS.items():
        if len(path) == 1:
            assert not unknown_variables(command, path[0])
