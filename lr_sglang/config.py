"""Every setting, described once: its name, type, range, default, a line of help, and whether a
request to the endpoint may set it.

The keys of deployment files, ``-o NAME=VALUE``, the keywords in Python, error messages and the
table in docs/cli.md come from these models. All are frozen; a wrong value is a ``ConfigError`` that
names the setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from lr_sglang.errors import ConfigError, did_you_mean

Role = Literal["target", "draft", "judge"]
ROLES: tuple[Role, ...] = ("target", "draft", "judge")
Schedule = Literal["async", "sync"]
MAX_WIDTH = 16
MAX_BRANCHES = 4096
FED = "fed"  # the token layer of the target alone
OWN = "its own field"  # of OpenAI's API, beside the object ``lookahead``


def setting(default: Any, help: str, *, request: str = "", **limits: Any) -> Any:
    """A field of a model.

    Args:
        default: of the field; ``...`` if it must be given.
        help: one line for people.
        request: the bound within which a request may set it; empty if it may not.
        limits: pydantic's, such as ``ge`` and ``le``.
    """
    return Field(default, description=help, json_schema_extra={"request": request}, **limits)


class ConfigModel(BaseModel):
    """A frozen model that refuses unknown keys and reports every error as a ``ConfigError``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )

    def __init__(self, *values: Any, **named: Any) -> None:
        """Takes fields by name, or by position in the order in which they are declared.

        Raises:
            ConfigError: an unknown field, a wrong type, or a value out of range.
        """
        fields = type(self).model_fields
        named.update(zip(fields, values, strict=False))
        try:
            super().__init__(**named)
        except ValidationError as error:
            raise _config_error(type(self), error, type(self).__name__.lower()) from None

    # pydantic calls an __init__ of a subclass for inner models too, and loses the place of an error
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "") -> Self:
        """Builds an instance from a table of TOML or JSON.

        Args:
            where: the table's name in error messages.

        Raises:
            ConfigError: an unknown key, a missing one, a wrong type or a value out of range.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise _config_error(cls, error, where) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return self.model_dump()

    def given(self) -> dict[str, Any]:
        """The values that were given, without those that are defaults."""
        return self.model_dump(exclude_unset=True)

    def replace(self, **changes: Any) -> Self:
        """A copy with these values, which are checked."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **changes})

    def with_options(self, **given: Any) -> Self:
        """A copy with these values; None is an option that was not given, and keeps the field's
        value.
        """
        return self.replace(**{key: value for key, value in given.items() if value is not None})


class Sampling(ConfigModel):
    """How tokens are drawn."""

    temperature: float = setting(0.6, "0 is greedy", ge=0, request=OWN)
    top_p: float = setting(
        0.95, "share of the probability that is drawn from", gt=0, le=1, request=OWN
    )
    # SGLang's scheduler stores top_k in 32 bits, and crashes if it does not fit
    top_k: int = setting(
        -1, "number of tokens that are drawn from; -1 is off", ge=-1, lt=2**31, request=OWN
    )
    min_p: float = setting(
        0.0, "least probability over that of the likeliest token", ge=0, le=1, request=OWN
    )
    seed: int = setting(0, "of the run; the seed of every branch is derived from it", request=OWN)

    @field_validator("top_k")
    @classmethod
    def _is_off_or_positive(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must be -1 (off) or at least 1")
        return value

    @property
    def greedy(self) -> bool:
        """Whether each token is the most probable one, and nothing is drawn."""
        return self.temperature == 0

    def drawn(self) -> dict[str, Any]:
        """The keywords of ``sgl.gen``: all fields but the seed."""
        return self.model_dump(exclude={"seed"})


class Lookahead(ConfigModel):
    """The settings of lookahead reasoning (paper section 4)."""

    schedule: Schedule = setting(
        "async", "whether drafts and target overlap", request="async or sync"
    )
    depth: int = setting(6, "steps to look ahead", ge=1, le=64, request="at most serve.max_depth")
    width: int = setting(
        1,
        "drafted alternatives per step",
        ge=1,
        le=MAX_WIDTH,
        request="at most serve.max_width",
    )
    max_step_tokens: int = setting(100, "tokens of one step", ge=1)
    half_sentence_guard: bool = setting(True, "never accept a step after one that was cut")
    shared_draws: bool = setting(
        True, "draft and target draw a step with the same random numbers (docs/theory.md)"
    )
    reading: Literal["auto", "first", "never"] = setting(
        "auto",
        "whether the target reads drafted tokens before it writes; auto: where that is faster",
    )
    conclusion: Literal["exact", "judged"] = setting(
        "exact",
        "what follows the thinking; exact: the target's own tokens, as lossless; judged: as the "
        "thinking",
    )
    verifier: str = setting(
        "judge",
        "who compares the versions of a step: NAME[:ARGUMENT] or FILE.py:CLASS",
        request="one of serve.verifiers",
    )
    gate: float = setting(
        0.0,
        "least probability that a branch is needed, for it to begin; 0 is off (docs/policies.md)",
        ge=0,
        lt=1,
    )
    policy: Literal["fixed", "adaptive"] = setting(
        "fixed", "adaptive chooses the way to write, depth and width by what is measured"
    )
    max_false_accepts: float = setting(
        0.35,
        "share of differing pairs of steps: a judge that accepts more is not trusted; 1 trusts any",
        gt=0,
        le=1,
    )

    @field_validator("verifier", mode="before")
    @classmethod
    def _is_a_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(
                "must be a name; a class of yours is 'FILE.py:CLASS', and an object goes with "
                "lr.AnswerRequest(verifier=...)"
            )
        return value

    @model_validator(mode="after")
    def _bounds_branches(self) -> Self:
        if self.policy == "adaptive":
            return self  # the adaptive policy limits the size of the tree, see policy.forecast
        if sum(self.width**i for i in range(self.depth + 1)) > MAX_BRANCHES:
            raise ValueError(
                f"width {self.width} at depth {self.depth} means more than {MAX_BRANCHES} branches "
                "at once: give less of them, or policy = 'adaptive', which grows no such tree"
            )
        return self


class Limits(ConfigModel):
    """Token budgets of one answer; None for the model's context length."""

    max_tokens: int | None = setting(
        None, "tokens of an answer", ge=1, request="its own field, at most the endpoint's"
    )
    max_total_tokens: int | None = setting(None, "tokens of prompt and answer together", ge=1)

    def budget(self, prompt_tokens: int, context: int) -> int:
        """Maximum tokens of an answer, for this length of the prompt and of the model's context."""
        total = min(context, self.max_total_tokens or context)
        return min(total - prompt_tokens, self.max_tokens or total)


class TokenLayer(ConfigModel):
    """SGLang's own speculative decoding inside a runtime; the name of the algorithm may stand for
    the table.
    """

    algorithm: str = setting(
        "none", "none, fed, ngram, standalone, eagle, eagle3, nextn, dflash or dspark"
    )
    tokens: int | None = setting(
        None,
        "drafted tokens per verification; by default steps, 12 for fed, else 8 (paper section 4)",
        ge=1,
    )
    draft_model: str = setting(
        "", "path, hub name or pocket:draft, for algorithms that draft with a model"
    )
    steps: int | None = setting(
        None, "steps of the draft model per verification; by default tokens, or 5 for a tree", ge=1
    )
    topk: int | None = setting(
        None, "alternatives per step of the draft model; 1 is a chain, more a tree", ge=1
    )
    ngram_max: int | None = setting(
        None, "longest match in the text so far after which all tokens are drafted", ge=1
    )
    accept_length: float | None = setting(
        None, "tokens per verification that SGLang simulates for random weights", ge=1
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"algorithm": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_an_algorithm(self) -> Self:
        idle = [name for name, value in self if name != "algorithm" and value]
        if idle and not self.on:
            raise ValueError(f"{', '.join(idle)}: given for no token layer; name its 'algorithm'")
        return self

    @property
    def on(self) -> bool:
        """Whether there is a token layer."""
        return self.algorithm != "none"

    @property
    def fed(self) -> bool:
        """Whether the draft runtime writes what it verifies."""
        return self.algorithm == FED


def wrong_url(url: str) -> str:
    """Why a text is no address of a server, with what it may have meant; empty if it is one."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        likely = f"http://{rest if mark else url}"
        meant = "" if wrong_url(likely) else f": did you mean {likely}?"
        return f"{url!r} is no address of a server, such as http://HOST:PORT{meant}"
    if not url.isprintable() or " " in url:
        return f"{url!r} has a space or a control character"
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
    except ValueError as error:
        return f"{url!r} is no address of a server: {error}"
    if not host:
        return f"{url!r} names no host: http://HOST:PORT"
    if port == 0:
        return f"{url!r} has port 0, at which nothing listens"
    return ""


class Runtime(ConfigModel):
    """One SGLang server: either ``model``, to launch it, or ``url``, if it runs already."""

    model: str = setting(
        "", "path, hub name, pocket:target, pocket:target@qwen3-0.6b (a body) or dummy:qwen3-32b"
    )
    url: str = setting("", "of a server or a router that runs already")
    tokenizer: str = setting(
        "", "needed only where a URL's server reports a path that is not on this machine"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to launch it")
    gpus: tuple[int, ...] = setting((), "numbers from 0, such as 0,1; by default it is placed")
    tensor_parallel: int = setting(
        1, "GPUs that share the weights; by -o it follows from gpus", ge=1
    )
    data_parallel: int = setting(1, "replicas", ge=1)
    memory_fraction: float | None = setting(
        None, "share of what is free on the GPU when the server starts", gt=0, lt=1
    )
    dtype: str = setting("auto", "of the weights")
    quantization: str = setting("", "SGLang's name of it")
    context_length: int | None = setting(None, "tokens; by default the model's", ge=1)
    port: int = setting(0, "0 is any that is free", ge=0, lt=65536)
    timeout: float = setting(
        600.0, "seconds of a request of up to 1,000 tokens; a longer one has more", gt=0
    )
    api_key_env: str = setting("", "variable that has the server's key")
    repeatable: bool = setting(False, "seeds count on a GPU too (deterministic inference)")
    token_layer: TokenLayer = setting(TokenLayer(), "of modes with a token layer")
    max_running_requests: int | None = setting(
        None, "requests at a time; by default as many as lookahead can have in flight", ge=1
    )
    extra: dict[str, Any] = setting({}, "further flags of SGLang, such as extra.max-total-tokens")

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and (why := wrong_url(value)):
            raise ValueError(why)
        return value

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, int):
            return (value,)
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("gpus")
    @classmethod
    def _are_different(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(gpu < 0 for gpu in value) or len(set(value)) < len(value):
            raise ValueError("GPUs are counted from 0, each of them once")
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.model) == bool(self.url):
            raise ValueError("a runtime needs either 'model' or 'url', and not both")
        if self.url and self.token_layer.on:
            raise ValueError("token_layer: a server that runs already has its own, or none")
        return self


class Served(ConfigModel):
    """How clients of ``lr-sglang serve`` name the model."""

    model: str = setting("", "name that clients ask for; by default the target's")
    aliases: tuple[str, ...] = setting(
        (), "further names that clients may ask for; a list for several"
    )

    @field_validator("aliases", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Deployment(ConfigModel):
    """The runtimes of a run, and its settings. In a file, a role may be the name of another role,
    whose runtime it shares: ``judge = "target"`` under ``[runtimes]``.
    """

    name: str = setting(..., "of the deployment; by default its file's")
    runtimes: dict[str, Runtime] = setting(..., "by role")
    shared: dict[str, str] = setting({}, "by role, the role whose runtime it shares")
    sampling: Sampling = setting(Sampling(), "how tokens are drawn")
    lookahead: Lookahead = setting(Lookahead(), "lookahead reasoning")
    limits: Limits = setting(Limits(), "token budgets of one answer")
    judge_prompt: Literal["", "paper", "pocket"] = setting(
        "", "of the judge; by default what suits its model"
    )
    serve: Served = setting(Served(), "names of the model")
    launch_timeout: float = setting(600.0, "seconds in which all servers have to be up", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _split_shared(cls, table: Any) -> Any:
        runtimes = table.get("runtimes") if isinstance(table, dict) else None
        shared = table.get("shared", {}) if isinstance(table, dict) else None
        if not isinstance(runtimes, dict) or not isinstance(shared, dict):
            return table
        named = {role: one for role, one in runtimes.items() if isinstance(one, str)}
        own = {role: one for role, one in runtimes.items() if role not in named}
        return {**table, "runtimes": own, "shared": {**shared, **named}}

    @model_validator(mode="after")
    def _has_its_roles(self) -> Self:
        for role in (*self.runtimes, *self.shared):
            if role not in ROLES:
                hint = did_you_mean(role, ROLES, f"roles are {', '.join(ROLES)}")
                raise ValueError(f"runtimes.{role}: no such role; {hint}")
        for role, other in self.shared.items():
            if other not in ROLES:
                raise ValueError(
                    f"runtimes.{role} = {other!r}: a text is another role, whose runtime it "
                    f"shares; a model is model = {other!r} under [runtimes.{role}]"
                )
        if "target" not in self.runtimes:
            raise ValueError("a deployment needs at least [runtimes.target]")
        for role, other in self.shared.items():
            if role in self.runtimes:
                raise ValueError(f"shared.{role}: the role has a runtime of its own")
            if other not in self.runtimes:
                raise ValueError(f"shared.{role} = {other!r}: there is no [runtimes.{other}]")
        for role in sorted(self.runtimes.keys() - {"target"}):
            if self.runtimes[role].token_layer.fed:
                raise ValueError(
                    f"runtimes.{role}.token_layer: fed is for the target, which verifies what the "
                    "draft writes"
                )
        judge = self.runtimes.get("judge")
        if judge and judge.token_layer.on and "judge" not in self.shared.values():
            raise ValueError(
                "runtimes.judge.token_layer: the judge writes one token, for which a token layer "
                "has no use"
            )
        return self

    def runtime(self, role: str) -> Runtime | None:
        """The runtime that plays a role, its own or a shared one."""
        return self.runtimes.get(self.shared.get(role, role))


def fields_of(model: type[ConfigModel], root: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The settings of a model and of its tables by dotted name, as in a deployment file; those of a
    role's runtime once for each role.
    """
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is Runtime:
            for role in ROLES:
                yield from fields_of(Runtime, f"{root}{name}.{role}.")
        elif inner is not None:
            yield from fields_of(inner, f"{root}{name}.")
        else:
            yield f"{root}{name}", field


def _model_in(annotation: Any) -> type[ConfigModel] | None:
    """The model that an annotation names, alone or as the values of a table."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, ConfigModel):
            return one
    return None


def _config_error(model: type[ConfigModel], error: ValidationError, where: str) -> ConfigError:
    """The first error of several, with the dotted name of its setting."""
    found = error.errors(include_url=False)[0]
    path = [str(part) for part in found["loc"]]
    if found["type"] == "extra_forbidden":
        *tables, name = path
        inner: type[ConfigModel] | None = model
        for table in tables:
            field = inner.model_fields.get(table) if inner else None
            inner = _model_in(field.annotation) if field else inner
        known = list(inner.model_fields) if inner else []
        place = ".".join(filter(None, (where, *tables)))
        hint = did_you_mean(name, known, f"known keys: {', '.join(sorted(known))}")
        return ConfigError(f"{place}: unknown key {name!r}".lstrip(": "), hint=hint)
    place = ".".join(filter(None, (where, *path)))
    said = found["msg"].removeprefix("Value error, ")
    said = "Input should be a table" if found["type"] in ("model_type", "dict_type") else said
    said = said[:1].lower() + said[1:] if said.startswith(("Input", "Field")) else said
    if found["type"] != "missing" and not found["msg"].startswith("Value error"):
        said += f", got {found['input']!r:.80}"
    words = re.findall("'([^']*)'", str((found.get("ctx") or {}).get("expected", "")))
    hint = did_you_mean(str(found["input"]), words, "")
    return ConfigError(f"{place}: {said}".lstrip(": "), hint=hint)
