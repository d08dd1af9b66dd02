"""The configuration: frozen dataclasses that check their values and refuse unknown keys.

All classes are plain data. ``from_dict`` makes one from a TOML table or a record; ``to_dict`` is
its inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from lr_sglang.config_model import ConfigModel, need

Role = Literal["target", "draft", "judge"]
ROLES: tuple[Role, ...] = ("target", "draft", "judge")
Schedule = Literal["async", "sync"]
MAX_WIDTH = 16


@dataclass(frozen=True)
class Sampling(ConfigModel):
    """How tokens are drawn. ``seed`` is the run's seed, from which the seed of every branch is
    derived.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(0 <= self.temperature < math.inf, "temperature: must be 0 or more")
        need(0 < self.top_p <= 1, "top_p: must be in (0, 1]")
        # SGLang's scheduler stores top_k in 32 bits, and crashes if it does not fit
        need(
            self.top_k == -1 or 1 <= self.top_k < 2**31,
            "top_k: must be -1 (off) or in 1..2147483647",
        )
        need(0 <= self.min_p <= 1, "min_p: must be in [0, 1]")

    def drawn(self) -> dict[str, Any]:
        """The keywords of ``sgl.gen``: all fields but the seed."""
        return {key: value for key, value in self.to_dict().items() if key != "seed"}


@dataclass(frozen=True)
class Lookahead(ConfigModel):
    """The settings of lookahead reasoning (paper section 4).

    Attributes:
        gate: the minimum probability that a branch is needed, for it to begin; 0 is off
            (docs/policies.md).
        max_false_accepts: if a judge's share of accepted pairs that differ is higher with
            statistical confidence, the target answers alone (docs/verifiers.md); 1 trusts any
            judge.
        policy: ``adaptive`` chooses depth and width up to those given.
    """

    _REMOVED: ClassVar[tuple[str, ...]] = ("hedge", "fast_accept", "priorities")

    schedule: Schedule = "async"
    depth: int = 6
    width: int = 1
    max_step_tokens: int = 100
    half_sentence_guard: bool = True
    verifier: str = "judge"
    gate: float = 0.0
    policy: Literal["fixed", "adaptive"] = "fixed"
    max_false_accepts: float = 0.35

    def __post_init__(self) -> None:
        hint = (
            "a class of yours is 'FILE.py:CLASS'; an object goes with "
            "lr.AnswerRequest(verifier=...)"
        )
        need(isinstance(self.verifier, str), f"verifier: must be a name; {hint}")
        super().__post_init__()
        need(1 <= self.depth <= 64, "depth: must be in 1..64")
        need(1 <= self.width <= MAX_WIDTH, f"width: must be in 1..{MAX_WIDTH}")
        need(self.max_step_tokens >= 1, "max_step_tokens: must be at least 1")
        need(0 <= self.gate < 1, "gate: must be in [0, 1) (0: off)")
        need(
            0 < self.max_false_accepts <= 1,
            "max_false_accepts: must be in (0, 1] (1: any judge is trusted)",
        )
        if self.policy == "adaptive":
            return  # the adaptive policy limits the size of the tree, see policy.room
        branches = sum(self.width**i for i in range(self.depth + 1))
        need(
            branches <= 4096,
            f"width {self.width} at depth {self.depth} means {branches} branches at once (of 4096)",
        )


@dataclass(frozen=True)
class Limits(ConfigModel):
    """Token budgets of one answer; None for the model's context length."""

    max_tokens: int | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_tokens", "max_total_tokens"):
            value = getattr(self, name)
            need(value is None or value >= 1, f"{name}: must be at least 1")

    def budget(self, prompt_tokens: int, context: int) -> int:
        """Maximum tokens of an answer, for this length of the prompt and of the model's context."""
        total = min(context, self.max_total_tokens or context)
        return min(total - prompt_tokens, self.max_tokens or total)


@dataclass(frozen=True)
class TokenLayer(ConfigModel):
    """SGLang's own speculative decoding inside a runtime; the name of the algorithm may stand for
    the table.

    Attributes:
        algorithm: ``none``, ``ngram``, ``standalone``, ``eagle``, ``eagle3`` and more: see
            ``runtimes.token_layer``.
        tokens: drafted tokens per verification, besides the token that every forward pass
            generates. None: follows from ``steps``, or is 8 (paper section 4).
        draft_model: path, hub name or ``pocket:draft``, for algorithms that draft with a model.
        steps: steps of the draft model per verification; None: ``tokens``, or 5 for a tree.
        topk: alternatives per step of the draft model; 1 drafts a chain, more a tree.
        ngram_max: the longest match in the text so far after which all ``tokens`` are drafted.
        accept_length: mean tokens per verification, including the target's own, that SGLang
            simulates for random weights, whose drafts would all be rejected; None: not simulated.
    """

    SHORT: ClassVar[str] = "algorithm"

    algorithm: str = "none"
    tokens: int | None = None
    draft_model: str = ""
    steps: int | None = None
    topk: int | None = None
    ngram_max: int | None = None
    accept_length: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tokens", "steps", "topk", "ngram_max", "accept_length"):
            value = getattr(self, name)
            need(value is None or value >= 1, f"{name}: must be at least 1")
        if not self.on:
            idle = [name for name, value in self.to_dict().items() if name != "algorithm" and value]
            need(not idle, f"{', '.join(idle)}: given for no token layer; name its 'algorithm'")

    @property
    def on(self) -> bool:
        """Whether there is a token layer."""
        return self.algorithm != "none"


@dataclass(frozen=True)
class Runtime(ConfigModel):
    """One SGLang server: either ``model``, to launch it, or ``url``, if it runs already.

    Attributes:
        model: a path, a hub name, ``pocket:target`` (built in), ``pocket:target@qwen3-0.6b`` (the
            same in a larger body), or ``dummy:qwen3-32b`` (random weights).
        tokenizer: needed only when a URL's server reports a path that is not on this machine.
        worker_api_key_env: for a router whose workers have another key than the router itself.
        token_layer: used by modes with a token layer.
        max_running_requests: requests at a time; None: as many as lookahead can have in flight (see
            ``policy``).
    """

    _RENAMED: ClassVar[dict[str, str]] = {"slots": "max_running_requests"}

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
    worker_api_key_env: str = ""
    repeatable: bool = False
    token_layer: TokenLayer = TokenLayer()
    max_running_requests: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        need(
            bool(self.model) != bool(self.url),
            "a runtime needs either 'model' or 'url', and not both",
        )
        need(
            not self.url or self.url.startswith(("http://", "https://")),
            f"url: {self.url!r} is no http address",
        )
        need(0 <= self.port < 65536, "port: must be in 0..65535 (0: any free one)")
        need(0 < self.timeout < math.inf, "timeout: must be more than 0 seconds")
        need(all(gpu >= 0 for gpu in self.gpus), "gpus: they are counted from 0")
        need(len(set(self.gpus)) == len(self.gpus), "gpus: each of them once")
        need(
            self.tensor_parallel >= 1 and self.data_parallel >= 1,
            "parallel sizes must be at least 1",
        )
        fraction = self.memory_fraction
        need(fraction is None or 0 < fraction < 1, "memory_fraction: must be between 0 and 1")
        for name in ("context_length", "max_running_requests"):
            value = getattr(self, name)
            need(value is None or value >= 1, f"{name}: must be at least 1")
        need(
            bool(self.url) or not self.worker_api_key_env,
            "worker_api_key_env: is for a router, given by its 'url'",
        )
        need(
            not (self.url and self.token_layer.on),
            "token_layer: a server that runs already has its own, or none",
        )


@dataclass(frozen=True)
class Deployment(ConfigModel):
    """The runtimes of a run. In a file, a role may be the name of another role, whose runtime it
    shares.

    ``judge_prompt`` is the name of the judge's prompt; if empty, it is chosen by the judge's model.
    ``judge_pairs`` is a file of pairs of steps that differ, for checking the judge
    (docs/verifiers.md).
    """

    name: str
    runtimes: dict[str, Runtime]
    shared: dict[str, str] = field(default_factory=dict)
    sampling: Sampling = Sampling()
    lookahead: Lookahead = Lookahead()
    limits: Limits = Limits()
    judge_prompt: str = ""
    judge_pairs: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for role in (*self.runtimes, *self.shared):
            need(role in ROLES, f"[runtimes.{role}]: no such role; roles are {', '.join(ROLES)}")
        need("target" in self.runtimes, "a deployment needs at least [runtimes.target]")
        for role, other in self.shared.items():
            need(role not in self.runtimes, f"shared.{role}: the role has a runtime of its own")
            need(
                other in self.runtimes, f"shared.{role} = {other!r}: there is no [runtimes.{other}]"
            )

        judge = self.runtimes.get("judge")
        need(
            not judge or not judge.token_layer.on or "judge" in self.shared.values(),
            "[runtimes.judge]: the judge writes one token, for which a token layer has no use",
        )

    def runtime(self, role: str) -> Runtime | None:
        """The runtime that plays a role, its own or a shared one."""
        return self.runtimes.get(self.shared.get(role, role))


def setting_names() -> list[str]:
    """The dotted names of all settings of a deployment."""
    names = []
    for table, kind in (("sampling", Sampling), ("lookahead", Lookahead), ("limits", Limits)):
        names += [f"{table}.{one.name}" for one in fields(kind)]
    for role in ROLES:
        for one in fields(Runtime):
            inner = fields(TokenLayer) if one.name == "token_layer" else ()
            names += [f"runtimes.{role}.{one.name}.{each.name}" for each in inner]
            names += [f"runtimes.{role}.{one.name}"] * (not inner)
        names.append(f"shared.{role}")
    return [*names, "judge_prompt", "judge_pairs"]
