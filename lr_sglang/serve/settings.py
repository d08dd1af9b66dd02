"""What an operator allows on an endpoint, and the defaults of its requests."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field, fields
from typing import Literal

from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.config_model import ConfigModel, need
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES

Reasoning = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Service(ConfigModel):
    """One endpoint.

    Attributes:
        model: the name under which requests ask for it.
        modes, verifiers: that a request may ask for; the first is what it gets if it does not.
        max_depth, max_width: that a request may ask for; None is what ``lookahead`` has.
        concurrency: answers at a time; ``queue`` more requests wait, and further ones are refused.
        timeout: seconds of one request, its time in the queue included.
        stall: seconds that one request to draft or judge may take before it is given up.
        max_connections: of clients, that may be open at a time.
        drain: seconds that answers have to end in when the endpoint stops.
        reasoning: whether an answer begins inside of ``<think>``: ``auto`` goes by the prompt and
            by what is written, ``on`` says that it always does, ``off`` leaves markers in the
            content.
        program: that answers conversations in place of lookahead reasoning's own
            (docs/programs.md).
        hosts_are_open: whether the Host header may have any name. An endpoint with no key, on a
            loopback address, must not be open to a web page whose domain points there (DNS
            rebinding).
        refuse: whether requests are refused for fields that only the target can follow; else the
            target answers them alone. With a ``program``, which answers in place of the target too,
            they are always refused.
        check_judge: whether the judge is asked at start about steps that differ
            (``verifiers.known_pairs``).
        allow_origin: of web pages that browsers let use the endpoint; ``*`` is any.
        open_metrics: whether ``/metrics`` can be read without a key where there are keys.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: str = "lookahead"
    modes: tuple[str, ...] = ("lookahead",)
    verifiers: tuple[str, ...] = ("judge",)
    lookahead: Lookahead = field(default_factory=Lookahead)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    judge_prompt: str = "paper"
    program: str = ""
    max_depth: int | None = None
    max_width: int | None = None
    concurrency: int = 8
    queue: int = 64
    timeout: float = 600.0
    stall: float = 10.0
    max_connections: int = 1024
    drain: float = 30.0
    max_body_bytes: int = 2**21
    max_prompt_tokens: int | None = None
    reasoning: Reasoning = "auto"
    refuse: bool = False
    check_judge: bool = False
    allow_origin: tuple[str, ...] = ()
    open_metrics: bool = False
    hosts_are_open: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        need(0 <= self.port < 65536, "port: must be in 0..65535 (0: any free one)")
        need(bool(self.model.strip()), "model: must not be empty")
        need(bool(self.modes) and bool(self.verifiers), "modes, verifiers: at least one of each")
        for mode in self.modes:
            need(mode in MODES, f"modes: {mode!r} is not one of {', '.join(MODES)}")
        for name in (
            *("max_depth", "max_width", "max_prompt_tokens", "max_body_bytes"),
            *("concurrency", "max_connections"),
        ):
            value = getattr(self, name)
            need(value is None or value >= 1, f"{name}: must be at least 1")
        need(self.queue >= 0, "queue: must be 0 or more")
        for name in ("timeout", "stall"):
            need(0 < getattr(self, name) < math.inf, f"{name}: must be more than 0 seconds")
        need(0 <= self.drain < math.inf, "drain: must be 0 seconds or more")

    @classmethod
    def assignable(cls) -> tuple[str, ...]:
        """The fields that ``-o serve.NAME=VALUE`` sets; the others have options or follow from
        them.
        """
        settled = {"modes", "verifiers", "lookahead", "sampling", "limits", "judge_prompt"}
        settled |= {"program", "check_judge", "hosts_are_open", "host", "port"}
        return tuple(one.name for one in fields(cls) if one.name not in settled)

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

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


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
    if not service.local and not keys and not allowed:
        raise ConfigError(
            f"listening on {service.host} without a key would let anybody who can reach this "
            "machine use it",
            hint="give --api-keys-file FILE (or LR_SGLANG_API_KEYS), or --allow-no-key if that "
            "is what you want",
        )
