"""The installed release of SGLang, and whether lr-sglang was tested with it."""

from __future__ import annotations

from importlib import metadata

TESTED = ("0.5.16", "0.5.23")


def version(package: str = "sglang") -> str:
    """The version of an installed package, without importing it; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def is_tested(release: str) -> bool:
    """Whether the tests passed with exactly this release; a local build of it
    (``+cu130``) counts.
    """
    return release.partition("+")[0] in TESTED


def release_advice() -> str:
    """What to do about a release with which something does not work."""
    return f"tested with {' and '.join(TESTED)}: pip install 'sglang=={TESTED[-1]}'"


def describe_release(release: str) -> str:
    """The release for a reader: ``0.5.23 (tested)``."""
    if not release:
        return "not installed"
    return (
        f"{release} (tested)"
        if is_tested(release)
        else f"{release} (not tested; tested: {', '.join(TESTED)})"
    )
