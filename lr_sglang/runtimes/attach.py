"""Runtimes that somebody else started: is it there, and where is its tokenizer?"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import models, probe


@dataclass(frozen=True)
class Attached:
    """A runtime that answers."""

    url: str
    tokenizer: str
    api_key: str = field(default="", repr=False)


def attach(role: str, runtime: Runtime, timeout: float = 5.0) -> Attached:
    """Checks that the runtime at ``runtime.url`` answers.

    Raises:
        RuntimeDown, RuntimeTimeout, RuntimeRefused, BadReply: it does not, or not as it should.
        ConfigError: its tokenizer cannot be found from here, or the API key's variable is not set.
    """
    key = api_key(role, runtime)
    url = runtime.url.rstrip("/")
    tokenizer = models.locate(runtime.tokenizer, role) if runtime.tokenizer else ""
    try:
        info = probe.model_info(url, api_key=key, timeout=timeout, role=role)
    except probe.NoSuchRoute as error:
        if tokenizer:
            return Attached(url, tokenizer, key)
        raise ConfigError(
            f"{url} does not say what it runs: it has no /model_info, as is so behind SGLang's router",
            role=role,
            hint="give 'tokenizer' (a path or a hub name) for this runtime, or the URL of an SGLang server",
        ) from error
    if not info.is_generation:
        raise ConfigError(f"{url} runs {info.model}, which does not generate text", role=role)
    if not tokenizer:
        tokenizer = info.tokenizer
        if models.is_path(tokenizer) and not Path(tokenizer).expanduser().is_dir():
            raise ConfigError(
                f"{url} has its tokenizer in {tokenizer}, which this machine does not have",
                role=role,
                hint="give 'tokenizer' (a path here or a hub name) for this runtime",
            )
    return Attached(url, tokenizer, key)


def api_key(role: str, runtime: Runtime) -> str:
    """The key that ``runtime.api_key_env`` names, or an empty string.

    Raises:
        ConfigError: the variable is not set.
    """
    if not runtime.api_key_env:
        return ""
    key = os.environ.get(runtime.api_key_env, "")
    if not key:
        raise ConfigError(f"the variable {runtime.api_key_env} (api_key_env) is not set", role=role)
    return key
