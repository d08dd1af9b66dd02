"""Options that commands share, in groups; None means 'not given': see ``settings`` for what holds
then. And ``-o NAME=VALUE``: any setting of a deployment, of the questions or of the command, by its
dotted name.

Such a name is that of the deployment file: ``lookahead.width``, ``runtimes.target.gpus``. A value
is read as TOML where it is TOML, else as text.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import click

from lr_sglang.config import ROLES, ConfigModel, Deployment, fields_of, setting
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.modes import MODES

TomlTable = dict[str, Any]
TOKEN_LAYER = "token_layer"
ALGORITHM = "algorithm"


class Assignment(click.ParamType):
    """``NAME=VALUE``, as a table with tables in it."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is no NAME=VALUE, such as lookahead.width=2", param, ctx)
        return name.strip(), parsed(text.strip())


def parsed(text: str) -> Any:
    """The value that a text stands for: a TOML value, or the text itself."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also a number with too many digits, and too deep a list
        return text
    plain = isinstance(found["value"], bool | int | float | str | list | dict)
    return found["value"] if found.keys() == {"value"} and plain else text


def gathered(
    assignments: tuple[tuple[str, Any], ...], own: Mapping[str, type[ConfigModel]]
) -> TomlTable:
    """The table of several assignments; of one name the last counts.

    Args:
        own: the settings of the command itself, by the root of their names.

    Raises:
        ConfigError: there is no such setting.
    """
    table: TomlTable = {}
    names = [name for name, _ in fields_of(Deployment)]
    names += [name for root, model in own.items() for name, _ in fields_of(model, f"{root}.")]
    names += [f"shared.{role}" for role in ROLES]
    for name, value in assignments:
        _check(name, names)
        given = nested(name, value)
        _check_tables(given, names)
        merge(table, given)
    return table


def _check(name: str, known: list[str]) -> None:
    if name in known or ".extra." in name:
        return
    if any(one.startswith(f"{name}.") for one in known):
        return  # a whole table
    below = [one for one in known if one.endswith(f".{name}")]
    hint = did_you_mean(name, known, "docs/cli.md lists the settings")
    hint = f"did you mean {below[0]}?" if below else hint
    raise ConfigError(f"-o {name}: there is no such setting", hint=hint)


def _check_tables(given: TomlTable, known: list[str], before: str = "") -> None:
    """Checks that what has settings below it is a table; a role may be the name of another one."""
    for key, value in given.items():
        name = f"{before}{key}"
        below = [one for one in known if one.startswith(f"{name}.")]
        if below and isinstance(value, dict):
            _check_tables(value, known, f"{name}.")
        elif below and not (before == "runtimes." and isinstance(value, str)):
            raise ConfigError(
                f"{name}: input should be a table, got {value!r}",
                hint=f"give one of its settings, such as -o {below[0]}=VALUE",
            )


def nested(name: str, value: Any) -> TomlTable:
    """``{"a": {"b": value}}`` for ``a.b``; what follows ``extra`` is one name."""
    first, dot, rest = name.partition(".")
    if dot:
        return {first: {rest: value} if first == "extra" else nested(rest, value)}
    if first == TOKEN_LAYER and isinstance(value, str):
        return {TOKEN_LAYER: {ALGORITHM: value}}
    if isinstance(value, dict) and first != "extra":
        return {first: {k: v for key, one in value.items() for k, v in nested(key, one).items()}}
    return {first: value}


def merge(table: TomlTable, more: Mapping[str, Any]) -> TomlTable:
    """Puts ``more`` over ``table``, tables within tables. Another algorithm begins a new token
    layer.
    """
    for key, value in more.items():
        before = table.get(key)
        if not isinstance(value, Mapping) or not isinstance(before, dict):
            table[key] = merge({}, value) if isinstance(value, Mapping) else value
        elif key == TOKEN_LAYER and before.get(ALGORITHM) != value.get(
            ALGORITHM, before.get(ALGORITHM)
        ):
            table[key] = dict(value)
        else:
            merge(before, value)
    return table


Decorator = Callable[[Any], Any]  # of commands
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)
AT_LEAST_0 = click.IntRange(min=0)
AT_LEAST_1 = click.IntRange(min=1)
SAMPLES = click.IntRange(1, 10_000)  # every one is in the plan before the first is made


class RunSettings(ConfigModel):
    """Of ``run`` and ``bench``: ``-o run.NAME=VALUE``."""

    prompt_suffix: str | None = setting(None, "appended to each question; by default the task's")


class BenchSettings(ConfigModel):
    """Of ``bench``: ``-o bench.NAME=VALUE``."""

    servers: Literal["auto", "together", "blocks"] = setting(
        "auto", "where modes need different ones: up together, or in turns"
    )
    paper: Literal["table1"] | None = setting(None, "the paper's tasks, samples and lengths")
    dummy_weights: bool = setting(False, "real servers and shapes with random weights")
    shapes: str = setting("", "with dummy_weights: of target, draft and judge, with commas")
    figures: str = setting(
        "", "file for the figures of this machine, to be given to others (docs/gpus.md)"
    )


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return found


class WordChoice(click.Choice[str]):
    """One of several words; of a misspelt one the error names the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        said = super().get_invalid_choice_message(value, ctx)
        near = did_you_mean(str(value), self.choices, "")
        return f"{said} {near[:1].upper()}{near[1:]}".rstrip()


def modes(help: str) -> Decorator:
    """``--mode``, which may be given several times."""
    return click.option("--mode", type=WordChoice(list(MODES)), multiple=True, help=help)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def assign(**own: type[ConfigModel]) -> Decorator:
    """``-o``: any setting, by its dotted name.

    Args:
        own: models of the command's own settings, by the root of their names. Their values are
            parameters of the command.
    """

    def gather(ctx: click.Context, param: click.Parameter, value: Any) -> TomlTable:
        table = gathered(value or (), own)
        for root, model in own.items():
            given = table.pop(root, {})
            ours = {name: one for name, one in given.items() if name in model.model_fields}
            ctx.params.update(dict(model.from_dict(ours, root)))
            if rest := {name: one for name, one in given.items() if name not in ours}:
                table[root] = rest  # of the deployment's own table
        return table

    return click.option(
        "-o",
        "--option",
        type=Assignment(),
        multiple=True,
        callback=gather,
        help="Any other setting, again for more: lookahead.width=2, sampling.top_k=20, "
        "runtimes.target.gpus=0,1.  docs/cli.md lists all of them.",
    )


method = together(
    click.option(
        "--schedule",
        type=WordChoice(["async", "sync"]),
        help="Overlap drafts and target.  [default: async]",
    ),
    click.option(
        "--depth",
        type=int,
        help="Steps to look ahead.  [default: the deployment's (pocket: 5), or 6]",
    ),
    click.option("--max-step-tokens", type=int, help="Tokens of one step.  [default: 100]"),
    click.option(
        "--verifier",
        metavar="NAME[:ARG]",
        help="judge, exact, embedding, score, likelihood, cascade, random, FILE.py:CLASS "
        "(docs/verifiers.md).  "
        "[default: judge]",
    ),
)

sampling = together(
    click.option(
        "--temperature", type=float, help="0 is greedy.  [default: the model family's, or 0.6]"
    ),
    click.option("--seed", type=int, help="Of the run; each branch derives its own.  [default: 0]"),
    click.option(
        "--max-tokens", type=int, help="Tokens of an answer.  [default: what the context holds]"
    ),
)

roles = together(
    *(
        click.option(
            f"--{role}",
            metavar="MODEL|URL",
            help=f"The {role}: a path, hub name, pocket:{role}, server URL, or the role whose "
            "runtime it shares.",
        )
        for role in ROLES
    ),
)

runtimes = together(
    click.option(
        "--deployment", metavar="FILE", help="Deployment file or built-in name.  [default: pocket]"
    ),
    click.option(
        "--attach", metavar="NAME", help="Use what 'lr-sglang launch' keeps up under that name."
    ),
    roles,
)

program = click.option(
    "--program",
    metavar="NAME",
    help="Answer by a SGLang program: NAME or FILE.py:FUNCTION, with [:KEY=VALUE,...] "
    "(docs/programs.md).  "
    "[default: the mode's own]",
)

source = together(
    click.option(
        "--task",
        metavar="NAME",
        help="A task, such as pocket or gsm8k: 'lr-sglang tasks' lists them.",
    ),
    click.option(
        "--input",
        type=ANY_PATH,
        metavar="FILE",
        help="JSONL or CSV with 'question' and, if known, 'answer' and 'id'; with --task, that "
        "task's questions.",
    ),
)

limit = click.option(
    "--limit", type=AT_LEAST_1, help="Questions of each task, at most; no more are read."
)

resume = click.option(
    "--resume",
    is_flag=True,
    help="Go on with what is in --output.",
)

token_layer = click.option(
    "--token-layer",
    metavar="NAME",
    help="SGLang's speculative decoding: fed (by what the draft runtime writes), ngram, "
    "standalone, eagle, eagle3, nextn, dflash, dspark, none, for the roles that it suits (of one: "
    "-o runtimes.ROLE.token_layer=NAME).  [default: the deployment's, or ngram]",
)

as_json = click.option(
    "--json", is_flag=True, help="JSON on standard output, and nothing else there."
)
quiet = click.option(
    "--quiet", is_flag=True, help="Only results and warnings: no progress, no notes."
)

output = together(
    click.option(
        "--output",
        type=FOLDER,
        metavar="DIR",
        help="Where records go.  [default: runs/NAME_DATE_TIME]",
    ),
    as_json,
    quiet,
)

logs = click.option(
    "--logs",
    type=FOLDER,
    metavar="DIR",
    help="Of the servers.  [default: in the user's state folder]",
)
