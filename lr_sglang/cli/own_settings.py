"""Settings of a command itself that have no option of their own: ``-o run.range=0:20``."""

from __future__ import annotations

from typing import Literal

from lr_sglang.config import ConfigModel, setting


class RunSettings(ConfigModel):
    """Of ``run`` and ``bench``: ``-o run.NAME=VALUE``."""

    range: str = setting("", "questions A to B-1, counted from 0: A:B")
    prompt_suffix: str | None = setting(None, "appended to each question; by default the task's")


class BenchSettings(ConfigModel):
    """Of ``bench``: ``-o bench.NAME=VALUE``."""

    servers: Literal["auto", "together", "blocks"] = setting(
        "auto", "where modes need different ones: up together, or in turns"
    )
    paper: Literal["table1"] | None = setting(None, "the paper's tasks, samples and lengths")
    dummy_weights: bool = setting(False, "real servers and shapes with random weights")
    alpha: str = setting("", "with dummy_weights: shares of steps to accept; by default 0.63")
    shapes: str = setting("", "with dummy_weights: of target, draft and judge, with commas")
