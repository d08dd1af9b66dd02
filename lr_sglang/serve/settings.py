"""What an operator allows on an endpoint, to whom, and the defaults of its requests."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from lr_sglang.config import ConfigModel, Limits, Lookahead, Sampling, setting
from lr_sglang.errors import ConfigError, reason_of
from lr_sglang.modes import MODES
from lr_sglang.plugin_files import text_of
from lr_sglang.serve.errors import refusal

KEYS_VARIABLE = "LR_SGLANG_API_KEYS"
ReasoningSetting = Literal["auto", "on", "off"]


class ServeSettings(ConfigModel):
    """Settings of an endpoint that have no option of their own, beside the names of the model
    (``config.Served``): ``-o serve.NAME=VALUE``.
    """

    verifiers: tuple[str, ...] = setting(
        (), "that a request may ask for, beside --verifier and exact; a list for several"
    )
    max_depth: int | None = setting(None, "that a request may ask for; by default --depth", ge=1)
    max_width: int | None = setting(
        None, "that a request may ask for; by default lookahead.width", ge=1
    )
    timeout: float = setting(600.0, "seconds of a request, its time in the queue included", gt=0)
    stall: float = setting(10.0, "seconds that a request to draft or judge may take", gt=0)
    max_connections: int = setting(1024, "of clients, open at a time", ge=1)
    drain: float = setting(30.0, "seconds that answers have to end in when it stops", ge=0)
    max_body_bytes: int = setting(2**21, "of a request; more gets 413", ge=1)
    refuse: bool = setting(
        False, "refuse requests with tools and so on, which else the target answers alone"
    )
    stop_in_thinking: bool = setting(
        True, "whether stop strings end an answer within its thinking too, as in SGLang"
    )
    allow_no_key: bool = setting(
        False, "let everybody in, from anywhere and by any host name, without a key"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "of the endpoint's log: JSON lines on standard error"
    )
    open_metrics: bool = setting(False, "let /metrics be read without a key where there are keys")

    @field_validator("verifiers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Service(ServeSettings):
    """One endpoint: what its requests may ask for, and their defaults."""

    model: str = setting("lookahead", "name that clients ask for", pattern=r"\S")
    aliases: tuple[str, ...] = setting((), "further names that clients may ask for")
    modes: tuple[str, ...] = setting(
        ("lookahead",), "that a request may ask for; the first is the default", min_length=1
    )
    verifiers: tuple[str, ...] = setting(
        ("judge",), "that a request may ask for; the first is the default", min_length=1
    )
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "0 is any that is free", ge=0, lt=65536)
    lookahead: Lookahead = setting(Lookahead(), "of requests that ask for nothing else")
    sampling: Sampling = setting(Sampling(), "of requests that ask for nothing else")
    limits: Limits = setting(Limits(), "of every answer")
    judge_prompt: str = setting("paper", "of the judge")
    program: str = setting("", "that answers in place of lookahead reasoning's own")
    concurrency: int = setting(8, "answers at a time", ge=1)
    queue: int = setting(64, "requests that wait; further ones are refused", ge=0)
    reasoning: ReasoningSetting = setting(
        "auto", "whether an answer begins inside of <think>: by prompt and text, always, or ignored"
    )
    allow_origin: tuple[str, ...] = setting(
        (), "of web pages that browsers let use the endpoint; * is any"
    )
    check_judge: bool = setting(False, "whether the judge is asked at start about known pairs")
    # An endpoint with no key, on a loopback address, must not be open to a web page whose domain
    # points there (DNS rebinding).
    hosts_are_open: bool = setting(True, "whether the Host header may have any name")

    @field_validator("modes")
    @classmethod
    def _are_modes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for mode in value:
            if mode not in MODES:
                raise ValueError(f"{mode!r} is not one of {', '.join(MODES)}")
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model; answers have the first."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))

    def adapter(self, asked: str | None) -> str:
        """The LoRA adapter in ``MODEL:ADAPTER``, with the colon; empty for the model itself, which
        also is what a request without a name asks for.

        Raises:
            Refusal: it is no name of this model.
        """
        if asked is None or asked in self.names:
            return ""
        longest = sorted(self.names, key=len, reverse=True)
        name = next((one for one in longest if asked.startswith(f"{one}:")), None)
        if name is None:
            raise refusal("model_not_found", param="model", asked=asked, known=self.model)
        return asked.removeprefix(name)

    @property
    def deepest(self) -> int:
        return self.max_depth or self.lookahead.depth

    @property
    def widest(self) -> int:
        return self.max_width or self.lookahead.width

    @property
    def passes(self) -> bool:
        """Whether the target answers alone what lookahead reasoning cannot follow."""
        return not self.refuse and not self.program


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name, which may stand for any address


def check_public(service: Service, keys: int, allowed: bool) -> None:
    """Raises ``ConfigError`` if others can reach the endpoint, it has no keys, and that is not
    ``allowed``.
    """
    if not is_loopback(service.host) and not keys and not allowed:
        raise ConfigError(
            f"listening on {service.host} without a key would let anybody who can reach this "
            "machine use it",
            hint="give --api-keys-file FILE (or LR_SGLANG_API_KEYS), or -o serve.allow_no_key=true "
            "if that is what you want",
        )


class Keys:
    """The keys that open an endpoint: compared in constant time, and never shown.

    Without keys, every request is allowed.
    """

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


def load_keys(file: Path | None, environ: Mapping[str, str] = os.environ) -> Keys:
    """The keys of a file (one a line; empty lines and those that begin with # are left out) and of
    the environment (with commas between them).

    Raises:
        ConfigError: the file cannot be read or holds no key.
    """
    found = environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if file is not None:
        try:
            lines = [line.strip() for line in text_of(file).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            why = f"--api-keys-file {file}: it cannot be read: {reason_of(error)}"
            raise ConfigError(why, hint="a text file with one key a line") from error
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ConfigError(f"--api-keys-file {file}: it holds no key", hint="one key a line")
        found += listed
    return Keys(found)
