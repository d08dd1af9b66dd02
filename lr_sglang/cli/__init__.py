"""The command line. Commands are imported when they are called, so that --help need not wait for
anything heavy.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any

import click

from lr_sglang import __version__
from lr_sglang.cli import streams, variables
from lr_sglang.cli.failures import reported_failures, warn
from lr_sglang.sglang_api import release

# Name -> module, and the command's line in the list. The module has the command under the same
# name.
COMMANDS = {
    "run": ("lr_sglang.cli.run", "Answer one question, a task or a file of questions."),
    "launch": (
        "lr_sglang.cli.launch",
        "Bring a deployment up and keep it up, for run to attach to.",
    ),
    "serve": (
        "lr_sglang.cli.serve",
        "Serve an OpenAI-compatible endpoint, and a page to watch it.",
    ),
    "doctor": ("lr_sglang.cli.doctor", "Say what this machine can do, and what is missing."),
    "demo": ("lr_sglang.cli.demo", "Compare the four modes on a few problems, on this machine."),
    "plan": ("lr_sglang.cli.plan", "Say what speed-up to expect, and which depth is best."),
    "report": ("lr_sglang.cli.report", "Make tables, plots and an HTML page of runs."),
    "tasks": ("lr_sglang.cli.tasks", "List what there is to ask, and whether it can be had here."),
    "bench": ("lr_sglang.cli.bench", "Measure whether looking ahead pays, and what varies it."),
}


class Commands(click.Group):
    """A group that imports a command only to run it or to print its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with reported_failures():  # --help prints here
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with reported_failures(), variables.named_in_errors(ctx):
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            variables.take_for(ctx, name, command, rest)
            for said in self._unknown_variables(ctx, name, command):
                warn(said)
        return name, command, rest

    def _unknown_variables(
        self, ctx: click.Context, name: str, command: click.Command
    ) -> Iterable[str]:
        ours = set(variables.variable_names(name, command))
        if not variables.unknown_variables(os.environ, ours):
            return []
        for other in COMMANDS:  # slow to import
            found = self.get_command(ctx, other)
            assert found is not None
            ours.update(variables.variable_names(other, found))
        return variables.unknown_variables(os.environ, ours)


@click.group(
    cls=Commands,
    commands=dict.fromkeys(COMMANDS, click.Command(None)),  # for click's "Did you mean"
    context_settings={
        "auto_envvar_prefix": variables.PREFIX,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Every option of a command can come from a variable: --depth of run is "
    "LR_SGLANG_RUN_DEPTH.",
)
@click.version_option(
    f"{__version__}; SGLang {release.describe_release(release.version())}",
    message="lr-sglang, version %(version)s",
    help="Say both versions.",
)
def cli() -> None:
    """Lookahead Reasoning on SGLang: a draft model looks several reasoning steps ahead of the
    target.

    \b
    Examples:
      lr-sglang demo
      lr-sglang run "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
    """


def main() -> None:
    """The installed command."""
    streams.prepare()
    cli(prog_name="lr-sglang")
