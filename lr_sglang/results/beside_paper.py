"""The paper's own speed-ups (its Table 1) beside those of a target of the same size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lr_sglang.results.measures import Measures
from lr_sglang.results.tables import Table, plain

SIZE = "32b"  # in the name of both targets
TASKS = ("aime24", "amc23", "gsm8k", "humaneval", "gpqa-diamond", "mt-bench", "livecodebench")


class Row(NamedTuple):
    """One column of the paper's table."""

    pair: str
    task: str
    alpha: float
    lookahead: float
    sd: float
    both: float


_DEEPSEEK = (
    (0.47, 0.58, 0.63, 0.44, 0.35, 0.48, 0.47),
    (1.36, 1.48, 1.71, 1.27, 1.14, 1.27, 1.21),
    (1.53, 1.50, 1.39, 1.32, 1.48, 1.25, 1.45),
    (1.82, 2.00, 2.11, 1.54, 1.63, 1.51, 1.58),
)
_QWEN3 = (
    (0.43, 0.53, 0.50, 0.39, 0.30, 0.38, 0.40),
    (1.12, 1.22, 1.32, 1.13, 1.04, 1.10, 1.08),
    (1.40, 1.38, 1.32, 1.32, 1.40, 1.41, 1.25),
    (1.49, 1.62, 1.68, 1.39, 1.44, 1.49, 1.32),
)
PAIRS = {
    "deepseek": ("DeepSeek-R1-Distill, 1.5B for 32B", _DEEPSEEK),
    "qwen3": ("Qwen3, 1.7B for 32B", _QWEN3),
}
ROWS = {
    key: [Row(name, *row) for row in zip(TASKS, *columns, strict=True)]
    for key, (name, columns) in PAIRS.items()
}


def beside(measures: Sequence[Measures]) -> Table | None:
    """A row for each measured alpha, with the comparable row of the paper; None for targets of
    another size.
    """
    cells: dict[tuple[str, str], dict[str, Measures]] = {}
    for m in measures:
        if SIZE in m.group.models.get("target", "").lower() and m.group.mode in (
            "lookahead",
            "sd",
            "lookahead+sd",
        ):
            cells.setdefault((m.group.task, m.group.label), {})[m.group.mode] = m
    rows = list(_rows(cells))
    note = (
        "speed-ups in tokens/s over the target's plain decoding. The paper measured its own on "
        "H100 GPUs with vLLM,"
        " each model on GPUs of its own. Its row is that of the same models and task, else the "
        "one of the nearest alpha"
    )
    columns = ["", "alpha", "lookahead", "sd", "lookahead+sd"]
    return Table("Beside the paper's Table 1", columns, rows, note) if rows else None


def _rows(cells: dict[tuple[str, str], dict[str, Measures]]) -> Iterator[list[str]]:
    told: set[Row] = set()
    for (task, label), by_mode in cells.items():
        ahead = (m for mode in ("lookahead", "lookahead+sd") if (m := by_mode.get(mode)))
        measured = next((m.alpha for m in ahead if m.alpha), None)
        if measured is None:
            continue
        said = {
            mode: plain(m.speed.tokens if m.speed else None, 2, unit="x")
            for mode, m in by_mode.items()
        }
        modes = [said.get(mode, "-") for mode in ("lookahead", "sd", "lookahead+sd")]
        yield [f"measured: {task}" + (f" ({label})" if label else ""), plain(measured, 2), *modes]
        row = _row(
            next(iter(by_mode.values())).group.models["target"].lower(), task, measured.value
        )
        if row not in told:
            told.add(row)
            speeds = (f"{speed:.2f}x" for speed in row[3:])
            yield [f"the paper: {row.pair}, {row.task}", f"{row.alpha:.2f}", *speeds]


def _row(target: str, task: str, alpha: float) -> Row:
    same = [row for key, rows in ROWS.items() if key in target for row in rows if row.task == task]
    return min(
        same or [row for rows in ROWS.values() for row in rows],
        key=lambda row: abs(row.alpha - alpha),
    )
