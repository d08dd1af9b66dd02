"""Tables that were measured on real servers (docs/benchmarks.md), to be calculated again.

The constants that no role alone shows (``assumed`` in benchmarks/times) are fitted to rows with one
answer at a time; what is calculated for several at once is a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.simulated.runs import Setting, answers, pair
from tests.simulated.scheduler import Flags
from tests.simulated.times import Times

NEAR = 0.25  # the largest error of a row that is not listed with its cause
ANSWERS = 24  # of each row, and at least three for each at a time

PLAIN = Setting("autoregressive")
WRITTEN = Setting("lookahead", depth=5, reading="never")
READ_FIRST = Setting("lookahead", depth=5, reading="first")
THREE, TEN = Flags("standalone", 3, 0.93), Flags("standalone", 10, 0.915)
SIX = Flags("standalone", 6, 0.945)

# Causes of rows that are off by more than NEAR.
SIXTEEN = (
    "16 answers have up to 80 branches: what so many requests cost two cores outside of the passes "
    "(controller, HTTP, memory of the cache) is measured nowhere"
)
STARVED = (
    "what a branch writes waits for the reads of other answers (one step was seen to wait 25 s); "
    "the model's drafts agree evenly, so that nearly everything is read"
)
DRIFT = (
    "the machine was slower in that run: two answers at once had no more tokens a second than four"
)


@dataclass(frozen=True)
class Row:
    """A measured speed-up.

    Attributes:
        over: the setting that it is over.
        plain_seconds: of an answer by plain decoding, in place of a speed-up; 0 if not given.
        cause: why it may be off by more than ``NEAR``.
    """

    setting: Setting
    at_once: int
    measured: float
    over: Setting = PLAIN
    plain_seconds: bool = False
    cause: str = ""


@dataclass(frozen=True)
class Table:
    """Rows that were measured with one pair of models on one machine.

    Attributes:
        agreement: of the tokens of drafts, in the modes of these rows.
        slower: milliseconds by which all passes of the target took longer than in the file: that of
            the machine on that day, from plain decoding of one answer.
    """

    name: str
    times: str
    agreement: float
    alpha: float
    rows: tuple[Row, ...]
    seeded: bool = True
    slower: float = 0.0


def _rows(at_once: int, figures: Sequence[tuple[Setting, float, str]]) -> Iterator[Row]:
    for setting, measured, cause in figures:
        yield Row(setting, at_once, measured, cause=cause)


def _written(
    at_once: int, lookahead: float, sd: float, both: float, cause: str = ""
) -> Iterator[Row]:
    layered = Setting("lookahead+sd", THREE, 5, "never")
    rows = (WRITTEN, lookahead, cause), (Setting("sd", THREE), sd, ""), (layered, both, cause)
    return _rows(at_once, rows)


def _read(
    at_once: int,
    sd: float,
    lookahead: float,
    both: float,
    lossless: float,
    cause: str = "",
    lossless_cause: str = "",
    sd_cause: str = "",
) -> Iterator[Row]:
    return _rows(
        at_once,
        (
            (Setting("sd", TEN), sd, sd_cause),
            (Setting("lookahead", depth=5), lookahead, cause),
            (Setting("lookahead+sd", TEN, 5), both, cause),
            (Setting("lossless", depth=5), lossless, lossless_cause),
        ),
    )


_H200 = Setting("lookahead", reading="never")
TABLES = (
    Table(
        "one H200",
        "h200",
        0.87,  # with draws of their own: alpha of exact answers, .11, is that of 16 tokens
        0.93,
        (
            Row(PLAIN, 1, 1.41, plain_seconds=True),
            Row(PLAIN, 8, 1.58, plain_seconds=True),
            Row(_H200, 1, 1.58),
            Row(_H200, 8, 0.61),
            Row(Setting("lossless", reading="never"), 1, 0.65),
            Row(Setting("sd", SIX), 1, 3.0),
            Row(Setting("sd", SIX), 8, 2.4),
            Row(Setting("lookahead+sd", SIX, reading="never"), 1, 2.2),
            Row(Setting("lookahead+sd", SIX, reading="never"), 8, 0.87),
            Row(Setting("lossless", SIX, reading="never"), 1, 1.1),
        ),
        seeded=False,
    ),
    Table(
        "two cores, draft-40, every step written",
        "two-cores",
        0.85,
        0.45,
        (*_written(1, 1.01, 2.51, 1.39), *_written(4, 0.53, 1.64, 0.61)),
    ),
    Table(
        "two cores, draft-60, every step written",
        "two-cores",
        0.90,
        0.62,
        (*_written(1, 1.22, 2.51, 1.78), *_written(4, 0.59, 1.56, 0.70)),
    ),
    Table(
        "two cores, draft, every step written",
        "two-cores",
        0.95,
        0.91,
        (
            *_written(1, 1.94, 2.80, 2.88),
            *_written(2, 1.47, 2.07, 1.74),
            *_written(4, 0.95, 2.04, 1.18),
            *_written(16, 0.48, 1.39, 0.56, SIXTEEN),
        ),
    ),
    *(
        Table(
            f"two cores, {name}, read first over written",
            "two-cores",
            agreement,
            alpha,
            (Row(READ_FIRST, 1, gain, WRITTEN),),
            slower=40.0,
        )
        for name, agreement, alpha, gain in (
            ("draft", 0.95, 0.89, 2.5),
            ("draft-60", 0.90, 0.64, 1.9),
            ("draft-40", 0.85, 0.43, 1.6),
            ("draft-words", 0.1, 0.82, 0.83),
        )
    ),
    Table(
        "two cores, draft, with reading",
        "two-cores",
        0.945,
        0.85,
        (
            *_read(1, 4.47, 4.51, 4.64, 4.75),
            *_read(2, 2.83, 3.16, 3.20, 4.45, DRIFT, DRIFT, DRIFT),
            *_read(4, 2.52, 1.77, 2.01, 3.16, STARVED),
            *_read(8, 2.36, 1.48, 1.20, 3.00, STARVED),
        ),
        slower=40.0,
    ),
)


@dataclass(frozen=True)
class Checked:
    """A row, and what was calculated for it."""

    table: Table
    row: Row
    calculated: float

    @property
    def error(self) -> float:
        """By which part the calculated figure is larger than the measured one."""
        return self.calculated / self.row.measured - 1

    @property
    def inside(self) -> bool:
        """Whether it is near enough."""
        return abs(self.error) <= NEAR


def calculated(tables: Sequence[Table] = TABLES) -> Iterator[Checked]:
    """Calculates every row."""
    for table in tables:
        times = Times.load(table.times)
        if table.slower:
            times = times.slower("target", table.slower)
        writer, known = (
            pair(table.agreement, table.alpha, 16, 5),
            dict[tuple[Setting, int], float](),
        )

        def pace(setting: Setting, at_once: int) -> float:
            if (setting, at_once) not in known:  # noqa: B023
                count = max(ANSWERS, 3 * at_once)
                made = answers(times, writer, setting, at_once, count, seeded=table.seeded)  # noqa: B023
                known[setting, at_once] = made.pace  # noqa: B023
            return known[setting, at_once]  # noqa: B023

        for row in table.rows:
            found = pace(row.setting, row.at_once)
            base = 81.0 if row.plain_seconds else pace(row.over, row.at_once)
            yield Checked(table, row, base / found if row.plain_seconds else found / base)
