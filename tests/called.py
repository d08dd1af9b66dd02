"""The command line, called in this process, and a Python of its own."""

import os
import sys
from collections.abc import Sequence
from subprocess import CompletedProcess, run
from typing import Any

from click import Context
from click.testing import CliRunner, Result

from lr_sglang.cli import cli
from lr_sglang.cli.serve import service_of
from lr_sglang.cli.settings import settle
from lr_sglang.serve.settings import Service
from tests import ROOT


def called(*words: object, code: int = 0, **more: Any) -> Result:
    """What a command says, which has to end with this status; what it raises else is raised."""
    given = [str(word) for word in words]
    result = CliRunner().invoke(cli, given, catch_exceptions=False, **more)
    assert result.exit_code == code, result.output
    return result


def python(
    *words: object, code: int = 0, given: str | None = None, **variables: str
) -> CompletedProcess[str]:
    """A Python of its own in the repository, without this one's variables of SGLang, which has to
    end with this status.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG")}
    command = [sys.executable, *map(str, words)]
    done = run(
        command,
        input=given,
        cwd=ROOT,
        env=env | variables,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def settled_service(options: Sequence[str]) -> Service:
    """What ``serve`` with these options offers."""
    made = cli.get_command(Context(cli), "serve")
    assert made is not None
    given = made.make_context("serve", list(options)).params
    return service_of(settle(given), given)
