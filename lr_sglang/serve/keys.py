"""API keys: read once, compared in constant time, and never shown."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from lr_sglang.errors import ConfigError

VARIABLE = "LR_SGLANG_API_KEYS"


class Keys:
    """The keys that open an endpoint. Only their digests are kept. Without keys, every request is
    allowed.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = sorted({_digest(key) for key in keys})

    def __len__(self) -> int:
        return len(self._digests)

    def open_to(self, authorization: str) -> bool:
        """Whether a request with this header is allowed. Every key is compared, even
        after a match.
        """
        scheme, _, key = authorization.partition(" ")
        given, fits = _digest(key.strip()), False
        for digest in self._digests:
            fits |= hmac.compare_digest(digest, given)
        return not self._digests or (fits and scheme.lower() == "bearer")


def load(file: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Keys, list[str]]:
    """The keys of a file (one a line; empty lines and those that begin with # are left out) and of
    the environment.

    Returns:
        The keys, and what the operator should be warned of.

    Raises:
        ConfigError: the file cannot be read or holds no key, or a key cannot be sent in a header.
    """
    found = [(VARIABLE, key) for key in environ.get(VARIABLE, "").replace(",", " ").split()]
    warnings = []
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
            mode = file.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-keys-file {file}: it cannot be read ({error})") from error
        numbered = [
            (f"{file}, line {number}", line.strip()) for number, line in enumerate(lines, 1)
        ]
        listed = [(where, line) for where, line in numbered if line and not line.startswith("#")]
        if not listed:
            raise ConfigError(f"--api-keys-file {file}: it holds no key", hint="one key a line")
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            warnings.append(f"{file} can be read by other users of this machine: chmod 600 {file}")
        found += listed
    for where, key in found:
        if not key.isascii() or not key.isprintable() or " " in key:
            message = f"{where}: this API key has a space in it, or a character that cannot be sent"
            raise ConfigError(
                message,
                hint="one key a line, such as A-Z a-z 0-9 - _; a comment has a line of its own",
            )
    return Keys(key for _, key in found), warnings


def _digest(key: str) -> bytes:
    """A digest; its length is fixed, so a comparison reveals nothing about the key's length."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
