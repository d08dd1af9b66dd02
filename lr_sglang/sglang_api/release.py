"""The installed release of SGLang, and whether lr-sglang was tested with it."""

from __future__ import annotations

import re
from importlib import metadata

TESTED = ("0.5.16", "0.5.23")


def version() -> str:
    """The installed release; empty if SGLang is not installed."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return ""


def numbers(release: str) -> tuple[int, ...]:
    """The leading numbers of a release, for comparisons, so that 0.5.24rc1 counts as 0.5.24."""
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, found[0].split("."))) if found else ()


def is_tested(release: str) -> bool:
    """Whether the tests passed with exactly this release; a local build of it
    (``+cu130``) counts.
    """
    return release.partition("+")[0] in TESTED


def describe(release: str) -> str:
    """The release for a reader: ``0.5.23 (tested)``."""
    if not release:
        return "not installed"
    return (
        f"{release} (tested)"
        if is_tested(release)
        else f"{release} (not tested; tested: {', '.join(TESTED)})"
    )
