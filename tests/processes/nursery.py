"""What simulated runtimes in processes of their own are forked from (see ``mortal``): imported
once, for seconds.
"""

from __future__ import annotations

import os

import lr_sglang.cli.simulate
import lr_sglang.simulated.serving  # noqa: F401
from lr_sglang.simulated.words import pocket_words

pocket_words()


def simulate(arguments: list[str], log: str) -> None:
    """``lr-sglang simulate`` in a fork."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    from lr_sglang.cli import cli

    cli(["simulate", *arguments], prog_name="lr-sglang")
