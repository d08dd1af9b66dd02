"""Writes a systemd unit for each server of a deployment.

lr-sglang launch deployment.toml --concurrency 16 --print --json | python units.py FOLDER
"""

import json
import re
import sys
from pathlib import Path

UNIT = """\
# Made by examples/operations/units.py from 'lr-sglang launch --print --json'.
[Unit]
Description=SGLang, the {role} of lr-sglang
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=lr-sglang
{environment}
ExecStart={command}
Restart=always
RestartSec=5
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
"""


def quoted(word: str) -> str:
    """A word as systemd reads it: in quotes where it needs them, and without specifiers."""
    for special, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        word = word.replace(special, written)
    return word if re.fullmatch(r"[\w./:=,@+-]+", word) else f'"{word}"'


def unit(role: str, argv: list[str], env: dict[str, str]) -> str:
    """The unit of one server."""
    program, *arguments = argv
    words = [program, *(quoted(word).replace("$", "$$") for word in arguments)]
    environment = [f"Environment={quoted(f'{name}={value}')}" for name, value in env.items()]
    return UNIT.format(role=role, command=" ".join(words), environment="\n".join(environment))


def main(folder: str) -> None:
    """Reads the commands from standard input."""
    for role, server in json.load(sys.stdin)["servers"].items():
        file = Path(folder, f"lr-sglang-{role}.service")
        file.write_text(unit(role, server["argv"], server["env"]), encoding="utf-8")
        print(file)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
