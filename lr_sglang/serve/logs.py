"""Logs for machines: one JSON object a line, with request ids and nothing that a user wrote."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any, TextIO

LOGGER = logging.getLogger("lr_sglang.serve")


class JsonLines(logging.Formatter):
    """A record as one line.

    Args:
        about: what stands in every line.
    """

    def __init__(self, **about: Any) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        when = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z"
        )
        line = {
            "time": when,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._about,
        }
        return json.dumps(line | getattr(record, "about", {}), ensure_ascii=True, default=str)


def log(event: str, level: int = logging.INFO, **about: Any) -> None:
    """Writes an event to the log."""
    LOGGER.log(level, event, extra={"about": about})


def where(error: BaseException) -> str:
    """The line that raised an error; its message could hold a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""


def set_up(level: str = "info", stream: TextIO | None = None, **about: Any) -> None:
    """Sends the endpoint's log, and uvicorn's warnings, to a stream (standard error).

    Args:
        about: what stands in every line.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(**about))
    for name, least in (("lr_sglang.serve", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least.upper())
