"""What can be configured: frozen, checked when made, unknown keys refused.

Every class is plain data. ``from_dict`` builds one from a TOML table or a record; ``to_dict`` is its inverse.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Self

from lr_sglang.errors import ConfigError

Role = Literal["target", "draft", "judge"]
ROLES: tuple[Role, ...] = ("target", "draft", "judge")
Schedule = Literal["async", "sync"]


class Table:
    """A frozen dataclass that is read from a table of keys and checks them."""

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "") -> Self:
        """Builds an instance.

        Args:
            table: key to value, as TOML or JSON gives it.
            where: how to name this table in an error, for example ``[runtimes.target]``.

        Raises:
            ConfigError: for an unknown key, a missing one, a wrong type or a value out of range.
        """
        assert dataclasses.is_dataclass(cls)
        where = where or cls.__name__.lower()
        known = {f.name: f for f in dataclasses.fields(cls)}
        for key in table:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
                raise ConfigError(f"{where}: unknown key {key!r}", hint=hint)
        hints = typing.get_type_hints(cls)
        values = {key: _coerce(value, hints[key], f"{where}.{key}") for key, value in table.items()}
        try:
            return cls(**values)
        except TypeError:
            lacking = [f.name for f in known.values() if f.name not in values and _required(f)]
            raise ConfigError(f"{where}: missing {', '.join(lacking)}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; None means 'leave as it is'."""
        given = {key: value for key, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)  # type: ignore[type-var]


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _coerce(value: Any, kind: Any, where: str) -> Any:
    """Checks ``value`` against an annotation; turns ints into floats and lists into tuples."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _coerce(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_coerce(v, arguments[0], where) for v in value)
    if origin is dict and isinstance(value, dict):
        return {str(k): _coerce(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, Table) and isinstance(value, dict):
        return kind.from_dict(value, where)
    if kind is float and type(value) is int:
        return float(value)
    plain = origin or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: expected {getattr(plain, '__name__', plain)}, got {value!r}")
    return value


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class Sampling(Table):
    """How tokens are drawn. ``seed`` is the run's; every branch derives its own from it."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _need(0 <= self.temperature < math.inf, "temperature: must be 0 or more")
        _need(0 < self.top_p <= 1, "top_p: must be in (0, 1]")
        _need(self.top_k == -1 or self.top_k >= 1, "top_k: must be -1 (off) or at least 1")
        _need(0 <= self.min_p <= 1, "min_p: must be in [0, 1]")

    def drawn(self) -> dict[str, Any]:
        """All but the seed, as keywords of SGLang's ``gen``."""
        return {key: value for key, value in self.to_dict().items() if key != "seed"}


@dataclass(frozen=True)
class Lookahead(Table):
    """The method's own numbers (paper section 4; the reference code's are in ``reference()``)."""

    schedule: Schedule = "async"
    depth: int = 6
    width: int = 1
    max_step_tokens: int = 100
    half_sentence_guard: bool = True
    verifier: str = "judge"

    def __post_init__(self) -> None:
        _need(1 <= self.depth <= 64, "depth: must be in 1..64")
        _need(1 <= self.width <= 16, "width: must be in 1..16")
        _need(self.max_step_tokens >= 1, "max_step_tokens: must be at least 1")
        branches = sum(self.width**i for i in range(self.depth + 1))
        _need(branches <= 4096, f"width {self.width} at depth {self.depth} means {branches} branches at once (of 4096)")


@dataclass(frozen=True)
class Limits(Table):
    """Token budgets of one answer; None means the model's own context."""

    max_tokens: int | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_total_tokens"):
            value = getattr(self, name)
            _need(value is None or value >= 1, f"{name}: must be at least 1")

    def budget(self, prompt_tokens: int, context: int) -> int:
        """Tokens that the answer may have, after a prompt of this length, in a context of that."""
        total = min(context, self.max_total_tokens or context)
        return min(total - prompt_tokens, self.max_tokens or total)


@dataclass(frozen=True)
class Runtime(Table):
    """One SGLang server: ``model`` (we launch it) or ``url`` (it runs already), never both.

    ``model`` is a path, a hub name, or ``pocket:target`` for a model that ships with the package.
    ``tokenizer`` is needed only when a URL's server reports a path that this machine does not have.
    """

    model: str = ""
    url: str = ""
    tokenizer: str = ""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpus: tuple[int, ...] = ()
    tensor_parallel: int = 1
    data_parallel: int = 1
    memory_fraction: float | None = None
    dtype: str = "auto"
    quantization: str = ""
    context_length: int | None = None
    port: int = 0
    timeout: float = 600.0
    api_key_env: str = ""
    repeatable: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _need(bool(self.model) != bool(self.url), "a runtime needs either 'model' or 'url', and not both")
        _need(not self.url or self.url.startswith(("http://", "https://")), f"url: {self.url!r} is no http address")
        _need(0 <= self.port < 65536, "port: must be in 0..65535 (0: any free one)")
        _need(0 < self.timeout < math.inf, "timeout: must be more than 0 seconds")
        _need(self.tensor_parallel >= 1 and self.data_parallel >= 1, "parallel sizes must be at least 1")
        fraction = self.memory_fraction
        _need(fraction is None or 0 < fraction < 1, "memory_fraction: must be between 0 and 1")


@dataclass(frozen=True)
class Deployment(Table):
    """The runtimes of a run. A role may be the name of another one, whose runtime it then shares."""

    name: str
    runtimes: dict[str, Runtime]
    shared: dict[str, str] = field(default_factory=dict)
    sampling: Sampling = Sampling()
    lookahead: Lookahead = Lookahead()
    limits: Limits = Limits()
    judge_prompt: str = "paper"

    def __post_init__(self) -> None:
        for role in (*self.runtimes, *self.shared):
            _need(role in ROLES, f"[runtimes.{role}]: no such role; roles are {', '.join(ROLES)}")
        _need("target" in self.runtimes, "a deployment needs at least [runtimes.target]")
        for role, other in self.shared.items():
            _need(role not in self.runtimes, f"shared.{role}: the role has a runtime of its own")
            _need(other in self.runtimes, f"shared.{role} = {other!r}: there is no [runtimes.{other}]")

    def runtime(self, role: str) -> Runtime | None:
        """The runtime that plays a role, its own or a shared one."""
        return self.runtimes.get(self.shared.get(role, role))
