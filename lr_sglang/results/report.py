"""A report of one or more runs: all figures of each group of records (quality, speed, acceptance,
parts of the time, and the formulas' expectation), the tables (a row for each task, mode and
setting), and the verdict in words, which says whether looking ahead pays here, by how much, and how
sure that is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.json_text import dumped
from lr_sglang.modes import MODES
from lr_sglang.results import accounting
from lr_sglang.results import statistics as st
from lr_sglang.results.collection import Collection, Group, program_of
from lr_sglang.results.record import ReportRow
from lr_sglang.results.statistics import MARGIN, Difference, Estimate
from lr_sglang.steps.trace import acceptance
from lr_sglang.tasks.boxed import normal
from lr_sglang.theory import measured as theory
from lr_sglang.theory.judged import MAX_STEPS, Case


@dataclass(frozen=True)
class Speed:
    """The speed-up over another group, on the same questions and samples.

    Attributes:
        seconds: the other's summed seconds over the group's.
        tokens: tokens per second over the other's; differs from ``seconds`` if answers are longer
            or shorter.
    """

    over: str
    seconds: Estimate
    tokens: Estimate


@dataclass(frozen=True)
class ExpectedByFormulas:
    """What the formulas expect of a run, by its measured acceptance, times of steps and verdicts,
    number of steps, and slow-down of parallel steps.

    Attributes:
        speedup: in tokens per second, over the same mode without lookahead.
        c1: the measured one.
    """

    speedup: float
    c1: float


@dataclass(frozen=True)
class Measures:
    """Figures of a group; None where nothing was measured.

    Attributes:
        standard_error: of the accuracy, over questions.
        any_right: share of questions with a right answer among their samples (pass@k).
        majority: share of questions whose most frequent answer is right (majority@k).
        no_answer: share of the graded answers in which no final answer was found.
        cut: share of the answers that a token budget ended.
        first: seconds to the first text (``ReportRow.first``).
        at_once: share of these answers that came as a whole with their first text.
        each: seconds for each further token, as load generators have it: those after the first
            text over the tokens less one, of answers that did not come at once.
        written: tokens that target and draft wrote for each token of the answers.
        drafted: share of the steps that the draft has written.
        decisions: requests, for each step, that decide about steps.
        alpha: pooled over all judged steps.
        agreement: share of the drafted tokens which the target has read that it would have written.
        judge_seconds: time of a verdict, without those that asked no verifier.
        roles: by role: calls, ``prefills`` and ``passes`` for each step, tokens, ``reuse`` (cached
            tokens over those that an earlier request shares), ``hit_rate`` (over all prompt
            tokens), ``sd`` (the token layer's).
    """

    group: Group
    errors: int
    accuracy: Estimate | None
    difference: Difference | None
    standard_error: float | None
    any_right: Estimate | None
    majority: Estimate | None
    no_answer: float | None
    cut: float | None
    first: Estimate | None
    at_once: float | None
    each: Estimate | None
    written: dict[str, float]
    drafted: float | None
    decisions: float | None
    speed: Speed | None
    over_sd: Speed | None
    seconds: Estimate | None
    tokens: float | None
    rate: Estimate | None
    alpha: Estimate | None
    agreement: Estimate | None
    late: int
    judged: int
    c1: Estimate | None
    step_seconds: Estimate | None
    judge_seconds: Estimate | None
    wasted: float | None
    time: dict[str, Any]
    expected: ExpectedByFormulas | None
    roles: dict[str, dict[str, Any]]

    @property
    def acceptance(self) -> tuple[str, Estimate | None]:
        """The figure that says how much of the drafts was kept, and its name: alpha; or, where
        exact answers have read the drafts, the agreement of their tokens.
        """
        if self.group.exact and self.agreement:
            return "agreement", self.agreement
        return "alpha", self.alpha

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON, where an estimate becomes a table of its fields."""
        group = self.group
        names = ("task", "mode", "label", "marks", "concurrency", "models", "settings")
        about = {name: getattr(group, name) for name in names} | {"marks": list(group.marks)}
        about |= {
            "samples": len(group.rows),
            "questions": len({r["question_id"] for r in group.rows}),
        }
        return about | {name: value for name, value in vars(self).items() if name != "group"}


def measure_group(collection: Collection, group: Group) -> Measures:
    """Measures one group."""
    base = collection.base(group) if group.mode != "autoregressive" else None
    sd = collection.base(group, "sd") if group.mode == "lookahead+sd" else None
    ended = group.ended
    graded = [r for r in group.rows if r["correct"] is not None]
    generated = sum(r["tokens"]["generated"] for r in group.rows)
    used, steps = sum(r["tokens"]["used"] for r in ended), sum(r.steps for r in ended)
    timed = [r for r in ended if r.first is not None]
    right = _counts(graded, lambda r: (bool(r["correct"]), 1))
    return Measures(
        group=group,
        errors=len(group.rows) - len(ended),
        accuracy=st.share_estimate(right),
        difference=st.difference(differences(group, base)) if base else None,
        standard_error=st.standard_error(right),
        any_right=st.share_estimate(
            {question: (some > 0, 1) for question, (some, _) in right.items()}
        ),
        majority=st.share_estimate(_majorities(graded)),
        no_answer=fmean(r["answer"] is None for r in graded) if graded else None,
        cut=fmean(r.get("finish") == "length" for r in ended) if ended else None,
        first=_per(timed, lambda r: (r.first or 0, 1)),
        at_once=fmean(r.at_once for r in timed) if timed else None,
        each=_per(ended, _after_first),
        written={
            role: sum(r["tokens"][role]["generated"] for r in ended) / used if used else 0.0
            for role in ("target", "draft")
        },
        drafted=sum(r.drafted for r in ended) / steps if steps else None,
        decisions=sum(r.decisions for r in ended) / steps if steps else None,
        speed=speed(group, base) if base else None,
        over_sd=speed(group, sd) if sd else None,
        seconds=_per(ended, lambda r: (r["seconds"], 1)),
        tokens=fmean(r["tokens"]["used"] for r in ended) if ended else None,
        rate=_per(ended, lambda r: (r["tokens"]["used"], r["seconds"])),
        alpha=st.share_estimate(_counts(ended, lambda r: (r["accepted"], r["judged"]))),
        agreement=st.share_estimate(
            _counts(ended, lambda r: (r.get("agreed_tokens", 0), r.get("read_tokens", 0)))
        ),
        late=sum(r.late for r in ended),
        judged=sum(r["judged"] for r in ended),
        c1=_c1(ended),
        step_seconds=_per(ended, lambda r: r.answer.target if r.answer else (0, 0))
        if group.mode.startswith("lo")
        else None,
        judge_seconds=_per(ended, lambda r: r.verdicts),
        wasted=sum(r["tokens"]["wasted"] for r in group.rows) / generated if generated else None,
        time=_time(ended),
        expected=expected(collection, group),
        roles={
            role: _role([r["tokens"][role] for r in group.rows], sum(r.steps for r in group.rows))
            for role in ROLES
        },
    )


def speed(group: Group, base: Group) -> Speed | None:
    """The speed-up over another group; None if they have no answer in common."""
    pairs = [
        (key[0], m, b)
        for key, m, b in _pairs(group, base)
        if m["error"] is None and b["error"] is None
    ]
    sums = _sums(
        (q, (b["seconds"], m["seconds"], m["tokens"]["used"], b["tokens"]["used"]))
        for q, m, b in pairs
    )
    columns = list(zip(*sums.values(), strict=True))
    if not columns:
        return None
    seconds = st.product(columns[:2], [1, -1], len(pairs))
    tokens = st.product(columns, [1, -1, 1, -1], len(pairs))
    if seconds is None or tokens is None:
        return None
    return Speed(base.name, seconds, tokens)


def differences(group: Group, base: Group) -> dict[Hashable, list[float]]:
    """By question, for each sample that both answered: 1 if only the group's answer is right, -1 if
    only the other.
    """
    found: dict[Hashable, list[float]] = defaultdict(list)
    for key, mine, other in _pairs(group, base):
        if mine["correct"] is not None and other["correct"] is not None:
            found[key[0]].append(float(bool(mine["correct"])) - bool(other["correct"]))
    return found


def _pairs(
    group: Group, base: Group
) -> Iterable[tuple[tuple[str, int, int], ReportRow, ReportRow]]:
    other = base.by_pair()
    return ((key, record, other[key]) for key, record in group.by_pair().items() if key in other)


def expected(collection: Collection, group: Group) -> ExpectedByFormulas | None:
    """The expectation for a lookahead group; None if its records do not suffice, or drafting is no
    faster.

    The formulas hold for one answer at one depth, whose steps are written, and not for programs
    that make several generations.
    """
    found = measured(collection, group)
    if found is None or any(row.answer.read for row in group.rows if row.answer):
        return None
    try:
        steps = min(found.steps, MAX_STEPS)
        case = Case(found.alpha, found.c1, found.judge, found.slowdown or 1.0, steps)
    except ConfigError:
        return None
    return ExpectedByFormulas(case.speedup(found.schedule, found.depth), found.c1)


def measured(collection: Collection, group: Group) -> theory.Measured | None:
    """What the formulas need of a lookahead group at one depth, its c1 over a target step of the
    same mode without lookahead where steps are read; None if its records do not suffice.
    """
    answers = [row.answer for row in group.rows if row.answer]
    fixed = all(one.lookahead and one.lookahead.policy != "adaptive" for one in answers)
    if group.mode not in theory.MODES_AHEAD or not fixed or program_of(group):
        return None
    # with the same token layer, if any
    base = collection.base(group, theory.mode_without_lookahead(answers))
    answers += [row.answer for row in (base.rows if base else ()) if row.answer]
    try:
        return theory.measure_mode(answers, group.mode)
    except (ConfigError, ZeroDivisionError):
        return None


def _sums(rows: Iterable[tuple[Hashable, tuple[float, ...]]]) -> dict[Hashable, Any]:
    """Sums columns of numbers by question."""
    sums: dict[Hashable, tuple[float, ...]] = {}
    for question, values in rows:
        sums[question] = tuple(
            map(sum, zip(sums.get(question, (0.0,) * len(values)), values, strict=True))
        )
    return sums


def _counts(
    records: Iterable[ReportRow], count: Callable[[ReportRow], tuple[float, float]]
) -> dict[Hashable, Any]:
    return _sums((record["question_id"], count(record)) for record in records)


def _majorities(graded: Iterable[ReportRow]) -> dict[Hashable, tuple[float, float]]:
    """By question, whether its most frequent answer is right; a share of 1 where several are as
    frequent. Right answers are one answer, however they are written.
    """
    votes: dict[Hashable, Counter[tuple[bool, str]]] = defaultdict(Counter)
    for row in graded:
        mine = votes[row["question_id"]]
        if row["answer"] is not None:
            right = bool(row["correct"])
            mine[right, "" if right else normal(str(row["answer"]))] += 1
    found = {}
    for question, counts in votes.items():
        most = max(counts.values(), default=0)
        first = [right for (right, _), count in counts.items() if count == most]
        found[question] = (fmean(first) if first else 0.0, 1.0)
    return found


def _after_first(row: ReportRow) -> tuple[float, float]:
    tokens = row["tokens"]["used"] - 1
    known = row.first is not None and not row.at_once and tokens > 0
    return (row["seconds"] - row.first, tokens) if known else (0, 0)


def _per(
    records: Sequence[ReportRow], of: Callable[[ReportRow], tuple[float, float]]
) -> Estimate | None:
    """The ratio of two sums over all records."""
    columns = list(zip(*(pair for pair in _counts(records, of).values() if any(pair)), strict=True))
    return st.product(columns, [1, -1], len(records)) if columns else None


def _c1(records: Sequence[ReportRow]) -> Estimate | None:
    """Mean draft step over mean target step."""
    sums = _sums(
        (r["question_id"], (*r.answer.draft, *r.answer.target)) for r in records if r.answer
    )
    rows = [row for row in sums.values() if row[1] and row[3]]
    return (
        st.product(list(zip(*rows, strict=True)), [1, -1, -1, 1], int(sum(r[1] for r in rows)))
        if rows
        else None
    )


def _time(rows: Sequence[ReportRow]) -> dict[str, Any]:
    """Sums over many answers: seconds by part, their sum, and the wall time that it explains."""
    sums = {part: sum(row.parts[part] for row in rows) for part in accounting.PARTS}
    explained, wall = sum(sums.values()), sum(row["seconds"] for row in rows)
    return {
        "parts": sums,
        "explained": explained,
        "wall": wall,
        "share": explained / wall if wall else None,
        "timed": any(row.timed for row in rows),
    }


def _role(tokens: Sequence[Mapping[str, Any]], steps: int) -> dict[str, Any]:
    names = ("calls", "generated", "prompt", "cached", "shareable", "reused")
    sums: dict[str, Any] = {name: sum(one[name] for one in tokens) for name in names}
    counts = [[one["sd"][name] for name in ("verified", "drafted", "accepted")] for one in tokens]
    for name in ("prefills", "passes"):  # older records have none
        known = steps and all(name in one for one in tokens)
        sums[name] = sum(one[name] for one in tokens) / steps if known else None
    return sums | {
        "reuse": sums["reused"] / sums["shareable"] if sums["shareable"] else None,
        "hit_rate": sums["cached"] / sums["prompt"] if sums["prompt"] else None,
        "sd": acceptance(counts),
    }


NONE = "-"
VERDICTS = {"kept": "kept", "worse": "worse", "open": "not shown"}
Cell = Callable[[Measures], str]


@dataclass(frozen=True)
class Table:
    """Formatted cells; the first column has the names of the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def cell(
    value: Estimate | float | None, digits: int, scale: float = 1.0, unit: str = "", sign: str = ""
) -> str:
    """A figure, and its interval if it has one."""
    if value is None:
        return NONE
    low, high = (value.low, value.high) if isinstance(value, Estimate) else (None, None)
    middle = value.value if isinstance(value, Estimate) else value
    said = f"{scale * middle:{sign}.{digits}f}{unit}"
    if low is None or high is None:
        return said
    return f"{said} ({scale * low:{sign}.{digits}f}..{scale * high:{sign}.{digits}f})"


def times(speed: Estimate | float | None) -> str:
    """A speed-up, and its interval if it has one."""
    return cell(speed, 2, unit="x")


def plain_figure(
    value: Estimate | float | None, digits: int, scale: float = 1.0, unit: str = ""
) -> str:
    """A figure without its interval."""
    return cell(value.value if isinstance(value, Estimate) else value, digits, scale, unit)


def _repeated(m: Measures) -> bool:
    """Whether questions have several graded samples."""
    return m.accuracy is not None and m.accuracy.samples > m.accuracy.questions


QUALITY: dict[str, Cell] = {
    "samples": lambda m: str(len(m.group.rows)) + (f" ({m.errors} failed)" if m.errors else ""),
    "accuracy %": lambda m: cell(m.accuracy, 1, 100),
    "± SE": lambda m: plain_figure(m.standard_error, 1, 100),
    "pass@k %": lambda m: plain_figure(m.any_right, 1, 100) if _repeated(m) else NONE,
    "majority@k %": lambda m: plain_figure(m.majority, 1, 100) if _repeated(m) else NONE,
    "no answer %": lambda m: plain_figure(m.no_answer or None, 1, 100),
    "cut %": lambda m: plain_figure(m.cut or None, 1, 100),
    "to the target, points": lambda m: cell(m.difference, 1, 100, sign="+"),
    "quality": lambda m: VERDICTS[m.difference.verdict] if m.difference else NONE,
}
METHODS: dict[str, Cell] = {
    "accuracy %": lambda m: cell(m.accuracy, 1, 100),
    "to the target, points": lambda m: cell(m.difference, 1, 100, sign="+"),
    "pass@k %": lambda m: plain_figure(m.any_right, 1, 100) if _repeated(m) else NONE,
    "seconds": lambda m: plain_figure(m.seconds, 2),
    "speed-up, seconds": lambda m: times(m.speed.seconds if m.speed else None),
    "target tokens": lambda m: plain_figure(m.written["target"], 2),
    "draft tokens": lambda m: plain_figure(m.written["draft"], 2),
    "by the draft %": lambda m: plain_figure(m.drafted, 0, 100),
    "decisions a step": lambda m: plain_figure(m.decisions, 2),
}
SPEED: dict[str, Cell] = {
    "speed-up, seconds": lambda m: times(m.speed.seconds if m.speed else None),
    "speed-up, tokens/s": lambda m: times(m.speed.tokens if m.speed else None),
    "over sd": lambda m: times(m.over_sd.tokens if m.over_sd else None),
    "by the formulas": lambda m: plain_figure(
        m.expected.speedup if m.expected else None, 2, unit="x"
    ),
    "tokens/s": lambda m: plain_figure(m.rate, 1),
    "seconds": lambda m: plain_figure(m.seconds, 2),
    "to the first, s": lambda m: (
        plain_figure(m.first, 2) + (f" ({100 * m.at_once:.0f} % at once)" if m.at_once else "")
    ),
    "ms/token": lambda m: plain_figure(m.each, 1, 1000),
    "tokens": lambda m: plain_figure(m.tokens, 0),
}
ACCEPTANCE: dict[str, Cell] = {
    "alpha": lambda m: cell(m.alpha, 2),
    "agreement": lambda m: cell(m.agreement, 2),
    "c1": lambda m: cell(m.c1, 2),
    "verdict, ms": lambda m: cell(m.judge_seconds, 1, 1000),
    "late %": lambda m: plain_figure(m.late / m.judged if m.judged else None, 1, 100),
    "wasted %": lambda m: plain_figure(m.wasted, 0, 100),
}


def _a_step(name: str) -> Cell:
    return lambda m: plain_figure(m.roles["target"][name], 2)


def _of_role(role: str) -> dict[str, Cell]:
    return {
        f"{role} reuse": lambda m: plain_figure(m.roles[role]["reuse"], 2),
        f"{role} cached / prompt": lambda m: plain_figure(m.roles[role]["hit_rate"], 2),
        **(
            {"target prefills": _a_step("prefills"), "target passes": _a_step("passes")}
            if role == "target"
            else {}
        ),
        f"{role} SD length": lambda m: plain_figure(
            m.roles[role]["sd"]["length"] if m.roles[role]["sd"]["verified"] else None, 2
        ),
    }


# What columns mean; a table has the lines of the columns that it shows.
_PAIRED = "differences and speed-ups are paired, on the same questions and samples"
_SPEEDUP = "speed-ups on the questions and samples that both modes have"
SAID: Mapping[str, Mapping[str, str]] = {
    "Methods": {
        "target tokens": "tokens that target and draft wrote for each token of the answers",
        "by the draft %": "steps that are the draft's own",
        "decisions a step": "verdicts, ratings and other requests of at most a token, for each "
        "step",
        "to the target, points": _PAIRED,
        "speed-up, seconds": _PAIRED,
    },
    "Quality": {
        "± SE": "standard errors over questions",
        "pass@k %": "with k samples of a question the accuracy is pass@1, the mean of k, pass@k "
        "counts a question with a right answer, and majority@k one whose most frequent answer is "
        "right",
        "no answer %": "no answer: without a final answer",
        "cut %": "cut: ended by the token budget",
        "to the target, points": "the difference is paired",
        "quality": f"kept: all of the interval is above -{100 * MARGIN:g} points, worse: all below",
    },
    "Speed": {
        "tokens/s": "of answers without an error",
        "to the first, s": "to the first: until the first step is there, or the first token where "
        "the target alone writes and its server tells",
        "speed-up, seconds": _SPEEDUP,
        "speed-up, tokens/s": _SPEEDUP,
        "by the formulas": "the formulas expect of the measured times and acceptance, over the "
        "same mode without lookahead",
    },
    "Acceptance": {
        "alpha": "alpha: accepted of the judged steps",
        "agreement": "agreement: of the drafted tokens that the target read, those that it would "
        "have written",
        "c1": "c1: time of a draft step over a target step",
        "late %": "late: refused because the draft came too late",
        "wasted %": "wasted: of the tokens generated",
    },
    "Runtimes": {
        " reuse": "reuse: cached tokens over those that an earlier request shares",
        "target prefills": "prefills: of the target's requests, for each step of the answers",
        "target passes": "passes: in which its requests decoded or verified, for each step",
        " SD length": "SD length: tokens of a verification of the token layer",
    },
    "Where the time went": {
        "accounted %": "along the critical path of each answer; queueing and prefill are in the "
        "other columns where a runtime does not report them"
    },
}
# What cells have, and its meaning.
WITHIN = {
    "at once": "at once: answers of which no text came before all of it",
    "..": "in brackets: 95 % intervals over questions",
}


def _note(title: str, columns: Iterable[str], cells: Iterable[str]) -> str:
    """What the columns of a table mean."""
    shown = list(columns)
    lines = [
        said
        for column, said in SAID[title].items()
        if any(one.endswith(column) if column.startswith(" ") else one == column for one in shown)
    ]
    within = " ".join(cells)
    lines += [said for part, said in WITHIN.items() if part in within]
    return "; ".join(dict.fromkeys(lines))


def all_of(measures: list[Measures]) -> Iterator[Table]:
    """All tables for which the runs have figures."""
    programs = any(program_of(m.group) for m in measures)
    tables = (
        _rows(measures, "Methods", METHODS, of=lambda m: programs),
        _rows(measures, "Quality", QUALITY, of=lambda m: m.accuracy is not None or m.errors),
        _rows(measures, "Speed", SPEED),
        _rows(
            measures,
            "Acceptance",
            ACCEPTANCE,
            of=lambda m: m.alpha is not None or m.agreement is not None,
        ),
        _rows(
            measures,
            "Runtimes",
            {name: say for role in ROLES for name, say in _of_role(role).items()},
        ),
        _time_table(measures),
    )
    return (table for table in tables if table is not None)


def _rows(
    measures: list[Measures],
    title: str,
    columns: Mapping[str, Cell],
    of: Callable[[Measures], Any] = bool,
) -> Table | None:
    """A table with a row for each group for which ``of`` is true; each column formats one figure,
    and is left out if no group has it.
    """
    # Marks are shown beside the mode if not all groups have them.
    mixed = len({m.group.marks for m in measures}) > 1
    shown = [m for m in measures if of(m)]
    table = {
        "task": [m.group.task for m in shown],
        "mode": [
            m.group.name + "".join(f" [{mark}]" for mark in m.group.marks if mixed) for m in shown
        ],
        **{name: [say(m) for m in shown] for name, say in columns.items()},
    }
    table = {name: cells for name, cells in table.items() if set(cells) != {NONE}}
    if not shown or not any(name in table for name in columns):
        return None
    figures = [cell for name in table if name in columns for cell in table[name]]
    note = _note(title, table, figures)
    return Table(title, [*table], list(map(list, zip(*table.values(), strict=True))), note)


def _time_table(measures: list[Measures]) -> Table | None:
    shown = [m for m in measures if m.time["wall"] and m.time["timed"]]
    columns: dict[str, Cell] = {
        "seconds": lambda m: plain_figure(m.time["wall"] / len(m.group.ended), 2)
    }
    for part, meaning in accounting.MEANING.items():
        if any(m.time["parts"][part] for m in measures):
            columns[f"{meaning} %"] = lambda m, part=part: plain_figure(
                m.time["parts"][part] / m.time["wall"], 1, 100
            )  # type: ignore[misc]
    columns["accounted %"] = lambda m: plain_figure(m.time["share"], 1, 100)
    return _rows(measures, "Where the time went", columns, of=lambda m: m in shown)


REPORT_SCHEMA = 1
WARNINGS = {
    "dummy weights": "random weights: times are real, the words are not, so accuracy and "
    "acceptance mean nothing",
    "simulated acceptance": "how many tokens a verification of the token layer gives was asked "
    "for, not measured",
}


LATE = 0.1  # share of judged steps whose draft came too late, above which it is said
ACCURACY = {
    "kept": ", so it is kept",
    "worse": ", which is more than chance",
    "open": ", within chance",
}


@dataclass(frozen=True)
class ModesVerdict:
    """The fastest way with lookahead against the fastest without, on the questions of both.

    Attributes:
        ahead, plain: names of the two groups.
        speed: seconds without lookahead over those with it.
        accuracy: that with lookahead less that without; None if no right answer is known.
        late: share of judged steps whose draft came too late.
        programs: the speed of each other way with lookahead that is a program, by its name.
        alone: why the way with lookahead used no draft; empty if it did.
    """

    task: str
    concurrency: int
    ahead: str
    plain: str
    speed: Estimate
    accuracy: Difference | None
    late: float
    programs: dict[str, Estimate]
    alone: str

    @property
    def pays(self) -> bool | None:
        """Whether it is faster and not less accurate, both beyond chance; None if the questions are
        too few to tell.
        """
        if self.speed.low is None or self.speed.holds(1.0):
            return None
        worse = self.accuracy is not None and self.accuracy.verdict == "worse"
        return self.speed.low > 1 and not worse

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {**vars(self), "pays": self.pays}

    def words(self) -> list[str]:
        """Lines of text: the verdict, the accuracy, and a warning if drafts were late."""
        speed = self.speed
        answer = {True: "Yes", False: "No", None: "Too few questions to tell"}[self.pays]
        lines = [
            f"Does looking ahead pay for {self.task}, {self.concurrency} at once? {answer}: "
            f"{self.ahead} has {speed.value:.2f}x the speed of {self.plain}{_between(speed)}, "
            f"{speed.questions} question{'s' * (speed.questions != 1)}."
        ]
        if self.accuracy is not None:
            points = f"{100 * self.accuracy.value:+.1f} points"
            chance = ACCURACY[self.accuracy.verdict]
            lines.append(f"Accuracy: {points} against {self.plain}{chance}.")
        if self.alone:
            lines.append(f"{self.ahead} used no draft: {self.alone}.")
        if self.programs:
            others = (f"{n} {one.value:.2f}x{_between(one)}" for n, one in self.programs.items())
            lines.append(f"Beside it: {', '.join(others)}; their accuracy is in the table.")
        if self.late > LATE:
            lines.append(
                f"Warning: {100 * self.late:.0f} % of the drafts came too late to be compared: the "
                "draft is too slow here, or the machine was busy."
            )
        return lines


def _between(speed: Estimate) -> str:
    if speed.low is None or speed.high is None:
        return ""
    return f" (95 %: {speed.low:.2f} to {speed.high:.2f})"


def verdicts(measures: Sequence[Measures]) -> Iterator[ModesVerdict]:
    """A verdict for every task, sampling and concurrency with answers of both kinds."""
    left = [m for m in measures if m.seconds is not None and m.group.mode in MODES]
    while left:
        like = [m for m in left if m is left[0] or m.group.comparable(left[0].group)]
        left = [m for m in left if not any(m is one for one in like)]
        kinds = [[m for m in like if MODES[m.group.mode].ahead is ahead] for ahead in (True, False)]
        if all(kinds):
            ahead, plain = (min(of, key=_rank) for of in kinds)
            speeds = {
                m.group.name: speed(m.group, plain.group)
                for m in kinds[0]
                if m.group.program and m is not ahead
            }
            if (found := _verdict(ahead, plain.group)) is not None:
                beside = {name: one.seconds for name, one in speeds.items() if one is not None}
                yield replace(found, programs=beside)


def _rank(m: Measures) -> tuple[bool, float]:
    """The fastest first, but after all others a mode that loses accuracy beyond chance, and a
    program that loses more than ``MARGIN``: few programs are made to keep it.
    """
    lost = m.difference
    worse = lost is not None and (
        lost.value < -MARGIN if m.group.program else lost.verdict == "worse"
    )
    return worse, m.seconds.value if m.seconds else float("inf")


def _verdict(ahead: Measures, plain: Group) -> ModesVerdict | None:
    found = speed(ahead.group, plain)
    if found is None:
        return None
    return ModesVerdict(
        task=ahead.group.task,
        concurrency=ahead.group.concurrency,
        ahead=ahead.group.name,
        plain=plain.name,
        speed=found.seconds,
        accuracy=st.difference(differences(ahead.group, plain)),
        late=ahead.late / ahead.judged if ahead.judged else 0.0,
        programs={},
        alone=next(filter(None, (row.get("alone") for row in ahead.group.rows)), "")
        if ahead.group.exact
        else "",
    )


@dataclass(frozen=True)
class Report:
    """All groups with their figures; ``tables`` and ``verdicts`` are made from them."""

    collection: Collection
    measures: list[Measures]
    tables: list[Table] = field(default_factory=list)
    verdicts: list[ModesVerdict] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """The warning on every table and plot; empty for runs on real models."""
        return "; ".join(WARNINGS[mark] for mark in self.collection.marks)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, for JSON; shares are between 0 and 1, times in seconds."""
        return {
            "schema": REPORT_SCHEMA,
            "folders": self.collection.folders,
            "notes": self.collection.notes,
            "marks": list(self.collection.marks),
            "warning": self.warning,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "groups": [m.to_dict() for m in self.measures],
        }


def make_report(collection: Collection) -> Report:
    """Measures everything."""
    measures = [measure_group(collection, group) for group in collection.groups]
    found = list(all_of(measures))
    return Report(collection, measures, found, list(verdicts(measures)))


def report_json(report: Report) -> bytes:
    """Every figure."""
    return dumped(report.to_dict(), default=vars, indent=1) + b"\n"
