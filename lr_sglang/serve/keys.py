"""API keys: read once, compared in constant time, and never shown."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lr_sglang.errors import ConfigError

VARIABLE = "LR_SGLANG_API_KEYS"


class Keys:
    """The keys that open an endpoint. Without keys, every request is allowed."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def __len__(self) -> int:
        return len(self._keys)

    def open_to(self, authorization: str) -> bool:
        """Whether a request with this header is allowed."""
        scheme, _, key = authorization.partition(" ")
        given = key.strip().encode()
        fits = [hmac.compare_digest(one, given) for one in self._keys]  # all, whichever fits
        return not self._keys or (any(fits) and scheme.lower() == "bearer")


def load(file: Path | None, environ: Mapping[str, str] = os.environ) -> Keys:
    """The keys of a file (one a line; empty lines and those that begin with # are left out) and of
    the environment (with commas between them).

    Raises:
        ConfigError: the file cannot be read or holds no key.
    """
    found = environ.get(VARIABLE, "").replace(",", " ").split()
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--api-keys-file {file}: it cannot be read ({error})") from error
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ConfigError(f"--api-keys-file {file}: it holds no key", hint="one key a line")
        found += listed
    return Keys(found)
