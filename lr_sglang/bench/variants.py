"""The variants that a benchmark compares: modes and programs with their settings; and the points
of ``--sweep``.

A point has a value for each swept setting; a mode ignores those that it does not use.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from lr_sglang import plugin_files
from lr_sglang.api.configuration import Plan
from lr_sglang.config import Deployment, Lookahead, Runtime, TokenLayer
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES, Able, possible
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.placement import memory
from lr_sglang.tasks import Question
from lr_sglang.user_programs import program_registry

Point = Mapping[str, Any]

MOST_VALUES = 64  # maximum number of values of one setting
_SPAN = re.compile(r"(\d+)\.\.(\d+)")


_Positive = Annotated[int, Field(ge=1)]
# Fields of ``Lookahead``.
LOOKAHEAD_FIELDS = ("depth", "width", "verifier", "gate", "policy", "schedule", "reading")
# What the values of a setting are.
SETTINGS: Mapping[str, TypeAdapter[Any]] = {
    **{
        name: TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]
        for name, field in Lookahead.model_fields.items()
        if name in LOOKAHEAD_FIELDS
    },
    "alpha": TypeAdapter(Annotated[str, Field(pattern=r"^(0?\.\d+|[01](\.0*)?)$")]),
    "concurrency": TypeAdapter(_Positive),
    "sd-tokens": TypeAdapter(Annotated[int, Field(ge=0)]),
    "token-layer": TypeAdapter(Annotated[str, Field(pattern=r"^[a-z0-9]+(:[1-9]\d*)?$")]),
}


def parse_sweep(text: str) -> list[Point]:
    """The points of one sweep: ``depth=1..8``, ``width=1,2``, ``sd-tokens=0,2..4``.

    Raises:
        ConfigError: there is no such setting, or a value is invalid.
    """
    name, equals, values = text.partition("=")
    name = name.strip()
    if name not in SETTINGS or not equals:
        raise ConfigError(
            f"--sweep {text}: there is no such setting",
            hint=f"NAME=VALUES of {', '.join(SETTINGS)}",
        )
    try:
        found = [SETTINGS[name].validate_python(one) for one in dict.fromkeys(_values(values))]
    except ValidationError as error:
        told = error.errors()[0]
        why = f"--sweep {text}: {told['input']!r}: {told['msg']}"
        raise ConfigError(why) from None
    if not found or len(found) > MOST_VALUES:
        raise ConfigError(
            f"--sweep {text}: give 1 to {MOST_VALUES} values",
            hint="such as depth=1..8 or width=1,2",
        )
    return [{name: value} for value in found]


def _values(text: str) -> Iterable[str]:
    for part in text.split(","):
        if span := _SPAN.fullmatch(part.strip()):
            low, high = int(span[1]), int(span[2])
            yield from map(str, range(low, min(high, low + MOST_VALUES) + 1))
        elif part.strip():
            yield part.strip()


def points(sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the values of all sweeps; one empty point if there is none.

    Raises:
        ConfigError: as ``parse_sweep``, or two sweeps vary the same setting.
    """
    parsed = [parse_sweep(text) for text in sweeps]
    names = [name for values in parsed for name in values[0]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--sweep: {', '.join(twice)} is varied twice")
    if "verifier" in names and "alpha" in names:
        raise ConfigError("--sweep: alpha is a verifier's; leave one of them out")
    return [
        {key: value for one in chosen for key, value in one.items()}
        for chosen in itertools.product(*parsed)
    ]


def of_mode(point: Point, mode: str) -> tuple[str, Point]:
    """The mode that results from a mode at a point, and the values of the point that it uses.

    With 0 drafted tokens, or layer ``none``, there is no token layer: ``sd`` becomes
    ``autoregressive``, ``lookahead+sd`` ``lookahead``.
    """
    plain = {"sd": "autoregressive", "lookahead+sd": "lookahead"}
    none = point.get("sd-tokens") == 0 or point.get("token-layer") == "none"
    mode = plain.get(mode, mode) if none else mode
    known = MODES[mode]
    left = dict(point)
    if not known.token_layer:
        left.pop("sd-tokens", None)
    if known.token_layer is False:
        left.pop("token-layer", None)
    for name in (*LOOKAHEAD_FIELDS, "alpha"):
        if not known.ahead or (known.lossless and name in ("verifier", "alpha")):
            left.pop(name, None)
    return mode, left


class Method(NamedTuple):
    """A way to answer: a mode, by its own program or by another."""

    mode: str
    program: str = ""

    @property
    def name(self) -> str:
        """The mode, or the program without the folder of its file."""
        return self.program.rpartition("/")[2] or self.mode


def methods(text: str, layered: bool) -> list[Method]:
    """The methods of ``A,B,...``: names of modes, and programs as ``--program`` takes them.

    Args:
        layered: whether programs run with a token layer.

    Raises:
        ConfigError: there is no such mode or program.
    """
    # Not between options, nor within a list.
    names = [name.strip() for name in re.split(r",(?!\s*\w+=|[^\[]*\])", text)]
    for name in names:
        if name not in MODES:
            program_registry.parse_program(name)
    ahead = "lookahead+sd" if layered else "lookahead"
    return [Method(n) if n in MODES else Method(ahead, n) for n in dict.fromkeys(names)]


def folder_name(name: str) -> str:
    """A name without characters that a folder's name cannot have."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".")


PLAIN = "sampled"
WAYS = ("replicas", "tp")  # values of --fair
SampleOfQuestion = tuple[Question, int]  # a question and the number of the sample
VariantKey = tuple[str, str]  # identifies a variant


@dataclass(frozen=True)
class Variant:
    """A mode with its settings.

    Attributes:
        folder: folder of its records in the benchmark's folder; with the mode it identifies the
            variant.
        plan: its settings.
        asked: part of the configuration: the task, the suffix of its questions, and ``--fair``.
    """

    folder: str
    mode: str
    task: str
    concurrency: int
    plan: Plan
    asked: dict[str, Any]

    @property
    def key(self) -> VariantKey:
        """Identifies the variant."""
        return self.folder, self.mode

    @property
    def name(self) -> str:
        """The name that is printed: its folder, and what its folder does not name: the program, and
        the mode, but of a program that only has the roles of ``lookahead``.
        """
        folder = "" if self.folder == PLAIN else self.folder
        program = Method(self.mode, self.plan.program).name if self.plan.program else ""
        words = [folder] if folder else []
        words += [program] if program and folder_name(program) not in folder else []
        words += [] if program and self.mode == "lookahead" else [self.mode]
        return " ".join(words)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration in its records."""
        return self.plan.configured(self.mode, **self.asked)

    def runtimes(self) -> dict[str, Runtime]:
        """All runtimes of the deployment, without token layers if this variant uses none."""
        layered = self.plan.layered(self.mode)
        return {
            role: one if layered or one.url else one.replace(token_layer=TokenLayer())
            for role, one in self.plan.deployment.runtimes.items()
        }


def variants(
    plan: Plan,
    tasks: Mapping[str, str],
    points: Sequence[Point] = ({},),
    concurrency: int = 1,
    asked_methods: Sequence[Method] = (),
    *,
    oracle: str = "random",
    fair: str = "",
) -> list[Variant]:
    """The variants, without duplicates of several points.

    Args:
        tasks: the suffix of the questions, by task.
        points: the points of the sweeps.
        concurrency: answers at a time, where no sweep says.
        asked_methods: by default the modes of the plan, all by its program.
        oracle: the verifier in a sweep of alpha, ``random`` or ``oracle``.
        fair: how modes without lookahead use the GPUs of lookahead (one of ``WAYS``); empty if they
            do not.

    Raises:
        ConfigError: a value is impossible, or a mode lacks a role.
    """
    found: dict[VariantKey, Variant] = {}
    each = asked_methods or [Method(mode, plan.program) for mode in plan.modes]
    _check_swept(points, each)
    for (task, suffix), point, method in product(tasks.items(), points, each):
        mode, rest = of_mode(point, method.mode)
        if mode not in possible(Able(layer=_layer(rest).algorithm)) and _layer(rest).fed:
            continue  # SGLang's own speculation is compared by its own layers
        mine = replace(at_point(plan, rest, oracle), program=method.program)
        asked: dict[str, Any] = {"questions": task, "prompt_suffix": suffix}
        if fair and not MODES[mode].ahead:
            deployment, asked["fair"] = fair_baseline(mine.deployment, fair)
            mine = replace(mine, deployment=deployment)
        words = [task] if len(tasks) > 1 else []
        words += [method.name] if asked_methods and method.program else []
        words += [f"{name}-{value}" for name, value in rest.items()]
        folder = folder_name("_".join(words)) or PLAIN
        at_once = rest.get("concurrency", concurrency)
        one = Variant(folder, mode, task, at_once, mine.checked(mode), asked)
        if found.setdefault(one.key, one).config != one.config:
            raise ConfigError(
                f"two settings would have the folder {one.folder}", hint="bench them apart"
            )
    return list(found.values())


def _check_swept(points: Sequence[Point], methods: Sequence[Method]) -> None:
    """Checks that each swept setting means something to one of the methods.

    Raises:
        ConfigError: one does not, so that its values would all be the same measurement.
    """
    used = {
        name
        for point, method in product(points, methods)
        for name in of_mode(point, method.mode)[1]
    }
    for name in (one for point in points for one, value in point.items() if value):
        if name not in used:
            modes = ", ".join(dict.fromkeys(method.mode for method in methods))
            raise ConfigError(
                f"--sweep {name}: no mode of {modes} uses it", hint="leave it out, or add a mode"
            )


def at_point(plan: Plan, point: Point, oracle: str) -> Plan:
    """A plan with the values of a point; ``oracle`` is the verifier that has an alpha.

    Raises:
        ConfigError: a value is impossible, or no runtime has a token layer to vary.
    """
    values = {name: point[name] for name in LOOKAHEAD_FIELDS if name in point}
    look = plan.deployment.lookahead.replace(**values)
    if "alpha" in point:
        look = look.replace(verifier=f"{oracle}:{point['alpha']}")
    runtimes = dict(plan.deployment.runtimes)
    if "token-layer" in point:
        layer = _layer(point)
        drafts = flags.algorithm(layer, "--sweep token-layer").draft if layer.on else "none"
        if drafts == "needed":
            own = runtimes["target"].token_layer.draft_model
            draft = runtimes.get("draft")
            layer = layer.replace(draft_model=own or (draft.model if draft else ""))
        for role in flags.roles_of(layer, "--sweep token-layer"):
            if role in runtimes and not runtimes[role].url:
                runtimes[role] = runtimes[role].replace(token_layer=layer)
                flags.check_layer(runtimes[role], "", f"[runtimes.{role}]")
        plan = replace(plan, lossless_layer=layer.on)
    taking = [role for role, one in runtimes.items() if one.token_layer.on and "sd-tokens" in point]
    if "sd-tokens" in point and not taking:
        hint = "give --token-layer ngram, or a deployment file with a token layer"
        raise ConfigError("--sweep sd-tokens: no runtime has a token layer", hint=hint)
    for role in taking:
        layer = runtimes[role].token_layer.replace(tokens=point["sd-tokens"])
        runtimes[role] = runtimes[role].replace(token_layer=layer)
        flags.check_layer(runtimes[role], "", f"[runtimes.{role}]")
    return plan.with_settings(lookahead=look, runtimes=runtimes)


def _layer(point: Point) -> TokenLayer:
    """The token layer of a point, ``NAME`` or ``NAME:TOKENS``; none where it has none."""
    _, name, tokens = plugin_files.named(point.get("token-layer", "none"))
    return TokenLayer(algorithm=name, tokens=int(tokens) if tokens else None)


def fair_baseline(deployment: Deployment, way: str) -> tuple[Deployment, str]:
    """The deployment of modes without lookahead on all GPUs of lookahead, and its description for
    tables.

    Args:
        way: ``replicas``: as many replicas of the target as fit; ``tp``: one target over more GPUs.

    Raises:
        ConfigError: the deployment does not name the GPUs of its runtimes, or has too few of them.
    """
    target = deployment.runtimes["target"]
    if any(runtime.url for runtime in deployment.runtimes.values()):
        raise ConfigError(
            "--fair: runtimes with a URL cannot be moved", hint="give models, or a deployment file"
        )
    if not all(runtime.gpus for runtime in deployment.runtimes.values()):
        raise ConfigError(
            f"--fair {way}: it is about GPUs, and these runtimes are on none",
            hint="compare on a machine with GPUs, or leave --fair out",
        )
    every = tuple(sorted({gpu for runtime in deployment.runtimes.values() for gpu in runtime.gpus}))
    mine = len(target.gpus)
    count = len(every) // mine * mine if way == "replicas" else _parallel(deployment, len(every))
    if count <= mine:
        other = "tp" if way == "replicas" else "replicas"
        raise ConfigError(
            f"--fair {way}: lookahead has {len(every)} GPUs, the target {mine} of them; a "
            "larger target does not fit",
            hint=f"--fair {other}, or other GPUs for the roles",
        )
    gpus = (*target.gpus, *(gpu for gpu in every if gpu not in target.gpus))[:count]
    if way == "replicas":
        copies = count // mine * target.data_parallel
        found = target.replace(gpus=gpus, data_parallel=copies)
        said = f"{copies} replicas"
    else:
        size = count // target.data_parallel
        found = target.replace(gpus=gpus, tensor_parallel=size)
        said = f"tensor parallel {size}"
    others = {role: one for role, one in deployment.runtimes.items() if role != "target"}
    said += f" on {count} GPUs"
    return deployment.replace(
        runtimes={"target": found.replace(memory_fraction=None), **others}
    ), said


def _parallel(deployment: Deployment, most: int) -> int:
    """GPUs for one target: its replicas times a power of two that divides its number of attention
    heads.
    """
    target = deployment.runtimes["target"]
    heads = memory.runtime_need(target, "[runtimes.target]").heads
    sizes = [
        size
        for size in (8, 4, 2, 1)
        if size * target.data_parallel <= most and (not heads or heads % size == 0)
    ]
    return max(sizes, default=1) * target.data_parallel
