"""The inputs of the formulas, measured from the records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES

# Outcomes of branches that were not cancelled: the target's steps that are in the answer or whose
# draft is, the draft's steps with a verdict. Among the latter are late drafts, with the time until
# they were stopped.
_FINISHED = {"target": ("accepted", "corrected", "bonus"), "draft": ("accepted", "rejected")}
# ``Verdict.by`` of rejections without a verifier: the draft was late, or failed.
_NO_VERDICT = ("late", "draft")

MODES_AHEAD = tuple(name for name, mode in MODES.items() if mode.ahead)


class SummedSeconds(NamedTuple):
    """Summed seconds of things, and their number."""

    seconds: float
    number: int


class Settings(NamedTuple):
    """Of lookahead."""

    schedule: str
    depth: int
    width: int
    policy: str


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What the formulas need of the record of one answer.

    Attributes:
        failed: whether it ended with an error.
        target, draft: finished steps; ``generated`` is the number of the target's tokens in them.
            None of a target that read drafted tokens: the formulas have steps that are written.
        verdicts: including those without a request.
        lookahead: None in a mode without.
        layered: whether the target has a token layer.
        read, agreed: drafted tokens that the target has read, and those that it would have written.
    """

    mode: str
    failed: bool
    seconds: float
    used: int
    steps: int
    judged: int
    accepted: int
    target: SummedSeconds
    draft: SummedSeconds
    generated: int
    verdicts: SummedSeconds
    lookahead: Settings | None
    layered: bool
    read: int = 0
    agreed: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The figures of a record.

        Raises:
            KeyError, TypeError: it lacks a field.
        """
        target, draft = ([*finished(record, role)] for role in ("target", "draft"))
        read = record.get("read_tokens", 0)
        look = record["config"]["lookahead"] if record["mode"] in MODES_AHEAD else None
        said = [
            verdict["seconds"]
            for step in record["steps"]
            for verdict in step["verdicts"]
            if verdict is not None and not verdict["failed"] and verdict["by"] not in _NO_VERDICT
        ]
        return cls(
            mode=record["mode"],
            failed=record["error"] is not None,
            seconds=record["seconds"],
            used=record["tokens"]["used"],
            steps=len(record["steps"]),
            judged=record["judged"],
            accepted=record["accepted"],
            target=SummedSeconds(0.0, 0)
            if read
            else SummedSeconds(sum(map(seconds_of, target)), len(target)),
            draft=SummedSeconds(sum(map(seconds_of, draft)), len(draft)),
            generated=sum(branch["generated"] for branch in target),
            verdicts=SummedSeconds(sum(said), len(said)),
            lookahead=look
            and Settings(
                look["schedule"], look["depth"], look["width"], look.get("policy", "fixed")
            ),
            layered=_layered(record),
            read=read,
            agreed=record.get("agreed_tokens", 0),
        )


@dataclass(frozen=True)
class Measured:
    """Means of a run. ``judge`` and ``c1`` are in units of ``step_seconds``, a target step among
    parallel branches.

    Attributes:
        alpha: share of judged steps that were accepted; a late draft counts as rejected.
        judge: mean time of all verdicts, including those without a request.
        slowdown: seconds per token of such a target step over those of ``base``, the same mode
            without lookahead; None if the run does not include it. ``speedup``, in tokens per
            second, is also over ``base``.
        agreement: share of the drafted tokens that the target would have written, if it read them;
            then ``step_seconds`` are those of ``base``, for the target wrote few whole steps.
        steps: steps per answer, rounded.
        schedule, depth, width: the settings of the run.
    """

    mode: str
    base: str
    alpha: float
    c1: float
    judge: float
    step_seconds: float
    slowdown: float | None
    speedup: float | None
    steps: int
    schedule: Schedule
    depth: int
    width: int
    samples: int
    judged: int
    agreement: float | None = None


def measure_mode(answers: Iterable[AnswerFigures], mode: str | None = None) -> Measured:
    """Measures one mode of a run, by default the first with lookahead.

    Raises:
        ConfigError: there are no such samples, or their settings differ.
    """
    ended = [answer for answer in answers if not answer.failed]
    modes = {answer.mode for answer in ended}
    mode = mode or next((m for m in MODES_AHEAD if m in modes), "lookahead")
    ahead = [answer for answer in ended if answer.mode == mode]
    if not ahead:
        raise ConfigError(
            f"the records have no sample of mode {mode} without an error",
            hint="measure another run",
        )
    base = mode_without_lookahead(ahead)
    ways = {answer.lookahead[:3] for answer in ahead if answer.lookahead}
    if len(ways) > 1:
        raise ConfigError(
            "the records have different schedules, depths or widths", hint="measure one run"
        )
    schedule, depth, width = ways.pop()
    judged = sum(answer.judged for answer in ahead)
    alone = [answer for answer in ended if answer.mode == base]
    pace = sum(answer.seconds for answer in alone) / max(1, sum(a.used for a in alone))
    written = [answer.target for answer in ahead]
    read = sum(answer.read for answer in ahead)
    if read and alone:
        written = [SummedSeconds(pace * answer.used, answer.steps) for answer in ahead]
    step = _mean(written, "target step")
    draft = _mean([answer.draft for answer in ahead], "judged draft step")
    verdict = _mean([answer.verdicts for answer in ahead], "verdict")
    slowdown = speedup = None
    if alone:
        if not read:
            busy = sum(answer.target.seconds for answer in ahead)
            slowdown = busy / max(1, sum(answer.generated for answer in ahead)) / pace
        speedup = pace * sum(a.used for a in ahead) / sum(a.seconds for a in ahead)
    return Measured(
        mode=mode,
        base=base,
        alpha=sum(answer.accepted for answer in ahead) / judged,
        c1=draft / step,
        judge=verdict / step,
        step_seconds=step,
        slowdown=slowdown,
        speedup=speedup,
        steps=max(1, round(sum(answer.steps for answer in ahead) / len(ahead))),
        schedule="sync" if schedule == "sync" else "async",
        depth=depth,
        width=width,
        samples=len(ahead),
        judged=judged,
        agreement=sum(answer.agreed for answer in ahead) / read if read else None,
    )


def mode_without_lookahead(answers: Iterable[AnswerFigures]) -> str:
    """The mode without lookahead that has a token layer if these answers, all of one mode, have
    one.
    """
    return "sd" if any(answer.layered for answer in answers) else "autoregressive"


def _layered(record: Mapping[str, Any]) -> bool:
    mode = MODES.get(record["mode"])
    if mode is not None and mode.token_layer is not None:
        return mode.token_layer
    target = (record["config"].get("runtimes") or {}).get("target") or {}
    if "token_layer" in target:
        return bool(target["token_layer"].get("algorithm", "none") != "none")
    # The server was attached: its counts show whether it has a token layer.
    counts = (record["tokens"].get("target") or {}).get("sd") or {}
    return bool(counts.get("verified"))


def seconds_of(branch: Mapping[str, Any]) -> float:
    """From a recorded branch's beginning to its end."""
    return float(branch["ended"] - branch["started"])


def finished(record: Mapping[str, Any], role: str) -> Iterator[dict[str, Any]]:
    """The branches of a role with one of the outcomes in ``_FINISHED``, and without an error."""
    for branch in record["branches"]:
        whole = branch["ended"] is not None and not branch["error"]
        if whole and branch["role"] == role and branch["outcome"] in _FINISHED[role]:
            yield branch


def _mean(times: Sequence[SummedSeconds], what: str) -> float:
    seconds, number = sum(one.seconds for one in times), sum(one.number for one in times)
    if not number or (what != "verdict" and not seconds):
        raise ConfigError(
            f"the records have no {what} with a time",
            hint="measure a run with more questions, and with autoregressive beside it or "
            "-o lookahead.reading=never",
        )
    return seconds / number
