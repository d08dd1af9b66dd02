"""Pocket models: a tiny target, draft and judge that ship with the package (``tools/pocket`` trains them)."""

from __future__ import annotations

from pathlib import Path

ROLES = ("target", "draft", "judge")
WEIGHTS = Path(__file__).parent / "weights"


def weights(role: str) -> Path:
    """The folder of the pocket model for ``role`` (target, draft or judge), in Hugging Face format."""
    if role not in ROLES:
        raise ValueError(f"no pocket model for role {role!r}; there are {', '.join(ROLES)}")
    return WEIGHTS / role
