"""The command line, called in this process."""

from collections.abc import Sequence
from typing import Any

from click import Context
from click.testing import CliRunner, Result

from lr_sglang.cli import cli
from lr_sglang.cli.serve import service_of
from lr_sglang.cli.settings import settle
from lr_sglang.serve.settings import Service


def called(*words: object, code: int = 0, **more: Any) -> Result:
    """What a command says, which has to end with this status; what it raises else is raised."""
    given = [str(word) for word in words]
    result = CliRunner().invoke(cli, given, catch_exceptions=False, **more)
    assert result.exit_code == code, result.output
    return result


def settled_service(options: Sequence[str]) -> Service:
    """What ``serve`` with these options offers."""
    made = cli.get_command(Context(cli), "serve")
    assert made is not None
    given = made.make_context("serve", list(options)).params
    return service_of(settle(given), given)
