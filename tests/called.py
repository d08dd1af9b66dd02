"""The command line, called in this process."""

from typing import Any

from click.testing import CliRunner, Result

from lr_sglang.cli import cli


def called(*words: object, code: int = 0, **more: Any) -> Result:
    """What a command says, which has to end with this status; what it raises else is raised."""
    given = [str(word) for word in words]
    result = CliRunner().invoke(cli, given, catch_exceptions=False, **more)
    assert result.exit_code == code, result.output
    return result
