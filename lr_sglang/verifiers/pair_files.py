"""Pairs of steps with different meanings, which a judge should reject: built-in ones, or a
deployment's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lr_sglang.errors import ConfigError
from lr_sglang.theory.shares import LEAST

ALIKE = 6  # number of pairs that say the same


def pairs(of: str) -> list[tuple[str, str]]:
    """The target's and the draft's version of each pair.

    Args:
        of: the name of a judge's prompt, or the path of a JSONL file with ``target`` and ``draft``
            in every line.

    Raises:
        ConfigError: the file cannot be read, a line is no such pair, or there are too few.
    """
    own = Path(__file__).parent / "pairs" / f"{of}.jsonl"
    path = own if own.is_file() else Path(of)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    found = [
        _pair(line, f"{path.name}, line {n}") for n, line in enumerate(lines, 1) if line.strip()
    ]
    if len(found) < LEAST:
        raise ConfigError(
            f"{path.name}: {len(found)} pairs say nothing: at least {LEAST}", hint="20 are better"
        )
    return found


def alike(of: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs that say the same, made from others: the target's version, with and without its last
    full stop.
    """
    return [
        (text, text.removesuffix(".") if text.endswith(".") else f"{text}.")
        for text, _ in of[:ALIKE]
    ]


def _pair(line: str, where: str) -> tuple[str, str]:
    hint = '{"target": "3 + 4 = 7 apples.", "draft": "Tom had 5 pears."}'
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is not JSON: {error}", hint=hint) from error
    texts = [row.get(key) for key in ("target", "draft")] if isinstance(row, dict) else []
    one, other = (text.strip() if isinstance(text, str) else "" for text in (texts or ("", "")))
    if not one or not other:
        raise ConfigError(f"{where}: a pair has two texts, 'target' and 'draft'", hint=hint)
    if one == other:
        raise ConfigError(f"{where}: the two are the same, and a judge should accept them")
    return one, other
