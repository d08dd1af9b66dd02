"""Figures as people read them: a line for a sample, a table for many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any

from rich.table import Table
from rich.text import Text

from lr_sglang.config import ROLES
from lr_sglang.results.brief import Brief
from lr_sglang.results.record import Record
from lr_sglang.results.summary import speed_up, summarise

NONE = "-"
ANSWER = 60  # characters of an answer in a line of others


def grid(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    left: Collection[str] = (),
    apart: int = 2,
) -> Table:
    """A table without lines, in which no word of a cell is broken: columns aligned right, except
    those in ``left``; ``apart`` spaces between them.
    """
    table = Table(box=None, padding=(0, apart, 0, 0), header_style="bold")
    body = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    for number, name in enumerate(head):
        cells = [name, *(row[number].plain for row in body)]
        words = [word for cell in cells for word in cell.split(" ")]
        table.add_column(
            Text(name),
            justify="left" if name in left else "right",
            no_wrap=name in left,
            min_width=max(map(len, words)),
        )
    for row in body:
        table.add_row(*row)
    return table


def share(value: float | None) -> str:
    """A share between 0 and 1."""
    return NONE if value is None else f"{value:.2f}"


def grade(record: Record) -> str:
    """Whether the answer is right, as far as that is known."""
    if record["error"]:
        return "failed"
    if (record.get("grade") or {}).get("failed"):
        return "not graded"
    return {True: "correct", False: "wrong", None: ""}[record["correct"]]


def line(record: Record) -> str:
    """One sample in one line."""
    if record["error"]:
        return f"{record['question_id']}  failed: {record['error']['message']}"
    parts = (
        record["question_id"],
        record["mode"],
        answer(record),
        grade(record),
        f"{record['seconds']:.1f} s",
    )
    return "  ".join(part for part in parts if part)


def answer(record: Record) -> str:
    """The answer in one line: the final answer, or else the last words of the text."""
    words = record["answer"] or next(
        (one for one in reversed(record["text"].splitlines()) if one.strip()), ""
    )
    return shorten(" ".join(words.split()), ANSWER)


def shorten(text: str, most: int) -> str:
    """The first ``most`` characters of a text."""
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: int, of: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {of}{'' if number == 1 else 's'}"


def of_sample(record: Record) -> list[str]:
    """One sample in a few lines."""
    if record["error"]:
        return [f"failed: {record['error']['message']}"]
    tokens, lines = record["tokens"], []
    if record["answer"] is not None or record["gold"] is not None:
        gold = f" (gold: {record['gold']})" if record["gold"] is not None else ""
        lines.append(f"answer: {record['answer'] or 'none'}{gold} {grade(record)}".rstrip())
    seconds = record["seconds"]
    rate = f", {tokens['used'] / seconds:.1f} tokens/s" if seconds else ""
    ended = "; ended by the token limit" if record["finish"] == "length" else ""
    written = f"{count(len(record['steps']), 'step')}, {count(tokens['used'], 'token')}"
    lines.append(f"{written} in {seconds:.2f} s{rate}{ended}")
    lines += _token_layer(tokens)
    if tokens["draft"]["calls"]:
        reuse = ", ".join(
            f"{role} {share(tokens[role]['reuse'])} (cached / prompt "
            f"{share(tokens[role]['hit_rate'])})"
            for role in ROLES
            if tokens[role]["calls"]
        )
        lines.append(
            f"alpha {share(record['alpha'])} ({record['accepted']} of {record['judged']}), "
            f"{count(tokens['wasted'], 'token')} wasted, "
            f"{count(tokens['judge']['calls'], 'judge call')}, "
            f"prefix reuse: {reuse}"
        )
    names = {"judge": "verifier"}
    lines += [
        f"{names.get(r, r)} failed {count(n, 'time')}: slower, not wrong"
        for r, n in record["failures"].items()
    ]
    return lines


def _token_layer(tokens: dict[str, Any]) -> list[str]:
    """What the runtimes' token layers did, where they have one."""
    return [
        f"token layer of the {role}: {sd['length']:.2f} tokens a verification, "
        f"{share(sd['rate'])} of the drafted, "
        f"{count(sd['verified'], 'verification')}"
        for role in ROLES
        if (sd := tokens[role]["sd"])["verified"]
    ]


def table(records: list[Brief]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Modes, and rows of a name and a cell for each mode.

    ``SD length`` is the acceptance length of a role's token layer, in tokens.
    """
    summary = summarise(records)
    rows: list[tuple[str, list[str]]] = []

    def row(name: str, cell: Callable[[dict[str, Any]], str], wanted: bool = True) -> None:
        if wanted:
            rows.append((name, [cell(figures) for figures in summary.values()]))

    def any_of(name: str) -> bool:
        return any(figures[name] for figures in summary.values())

    row("samples", _at("samples"))
    row("failed", _at("errors"), any_of("errors"))
    row("grading failed", _at("grading_failed"), any_of("grading_failed"))
    row("accuracy", _at("accuracy"), any_of("graded"))
    row("  95 % interval", _interval, any_of("interval"))
    row("seconds per answer", _at("seconds_mean"))
    row("tokens/s", lambda f: NONE if f["tokens_per_s"] is None else f"{f['tokens_per_s']:.1f}")
    if len(summary) > 1 and "autoregressive" in summary:
        ratios = [None if mode == "autoregressive" else speed_up(records, mode) for mode in summary]
        rows.append(("speed-up (total seconds)", [_times(ratio) for ratio in ratios]))
    row("steps accepted (alpha)", _at("alpha"), any_of("judged"))
    row("wasted tokens", _at("wasted"))
    for role in ROLES:
        layered = any(figures["roles"][role]["sd"]["verified"] for figures in summary.values())
        row(f"SD length, {role}", _at("roles", role, "sd", "length"), layered)
        row("  rate", _at("roles", role, "sd", "rate"), layered)
        row("  verifications", _at("roles", role, "sd", "verified"), layered)
    for role in ROLES:
        asked = any(figures["roles"][role]["calls"] for figures in summary.values())
        row(f"prefix reuse, {role}", _at("roles", role, "reuse"), asked)
        row("  cached / prompt", _at("roles", role, "hit_rate"), asked)
    row("false accepts of judge", _false_accepts, any_of("false_accepts"))
    row("judge calls", _at("judge_calls"), any_of("judge_calls"))
    row("cut by the token limit", _at("cut_off"), any_of("cut_off"))
    for role in ("draft", "judge"):
        failed = any(role in figures["failures"] for figures in summary.values())
        row(f"{role} failures survived", partial(_failures, role), failed)
    return list(summary), rows


def _times(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}x"


def _interval(figures: dict[str, Any]) -> str:
    return NONE if figures["interval"] is None else "{:.2f} to {:.2f}".format(*figures["interval"])


def _at(*path: str) -> Callable[[dict[str, Any]], str]:
    """A cell of the table: the figure at this path, a count or a share."""

    def cell(figures: dict[str, Any]) -> str:
        value: Any = reduce(getitem, path, figures)
        return str(value) if isinstance(value, int) else share(value)

    return cell


def _false_accepts(figures: dict[str, Any]) -> str:
    found = figures["false_accepts"]
    return "{:.2f} to {:.2f}".format(*found["interval"]) if found else NONE


def _failures(role: str, figures: dict[str, Any]) -> str:
    return str(figures["failures"].get(role, 0))
