"""One self-contained HTML page of runs: questions, step trees with both versions, timelines."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lr_sglang.results import accounting
from lr_sglang.results.cells import spanned
from lr_sglang.results.measures import Measures
from lr_sglang.results.record import Record
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate

HERE = Path(__file__).parent
SEARCHED = 400  # characters of a question that the filter looks at


def page(report: Report, title: str) -> Iterator[str]:
    """The page, in pieces: all of it at once would be in memory twice."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "TITLE": html.escape(title),
        "STYLE": (HERE / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": script,
        "SCRIPT_HASH": f"sha256-{digest}",
        "INDEX": inert(index(report)),
    }
    # One pass over the template: what is put in is not looked through again.
    for number, part in enumerate((HERE / "page.html").read_text(encoding="utf-8").split("%")):
        if number % 2 == 0:
            yield part
        elif part == "RECORDS":
            for n, record in enumerate(report.collection.records):
                yield f'<script type="application/json" id="r{n}">{inert(detail(record))}</script>\n'
        else:
            yield values[part]


def inert(table: Any) -> str:
    """JSON that can stand in a script element, whatever is in it: nothing in it ends the element or begins another."""
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def index(report: Report) -> dict[str, Any]:
    """What the list and the summary need; the rest of an answer is read when it is opened."""
    records: list[dict[str, Any]] = []
    for number, group in enumerate(report.collection.groups):
        for record in group.records:
            words = " ".join((record["question_id"], record["question"][:SEARCHED], str(record["answer"] or "")))
            records.append(
                {
                    "n": len(records),
                    "id": record["question_id"],
                    "task": group.task,
                    "sample": record["sample"],
                    "group": number,
                    "result": result(record),
                    "seconds": record["seconds"],
                    "alpha": record.get("alpha"),
                    "search": words.lower(),
                }
            )
    answers, tasks = len(records), len(report.collection.tasks)
    models = report.collection.models
    return {
        "about": f"{answers} answers, {tasks} task{'s' * (tasks > 1)}" + (f"; {models}" if models else ""),
        "warning": report.warning[:1].upper() + report.warning[1:],
        "groups": [
            {"name": m.group.name, "mode": m.group.mode, "task": m.group.task, "facts": _facts(m)}
            for m in report.measures
        ],
        "tables": [vars(table) for table in report.tables],
        "tasks": tasks,
        "samples": len({record["sample"] for record in records}),
        "parts": accounting.MEANING,
        "records": records,
    }


def result(record: Record) -> str:
    """In a word."""
    if record["error"]:
        return "failed"
    return {True: "correct", False: "wrong", None: "ungraded"}[record["correct"]]


def _facts(m: Measures) -> list[list[str]]:
    """Name, value and interval."""
    found: list[list[str]] = []

    def add(name: str, estimate: Estimate | None, digits: int, scale: float = 1, unit: str = "") -> None:
        if estimate is not None:
            value, _, interval = spanned(estimate, digits, scale, unit).partition(" (")
            found.append([name, value, interval and f"({interval}"])

    add("accuracy", m.accuracy, 1, 100, " %")
    add("speed-up", m.speed.tokens if m.speed else None, 2, unit="x")
    add("alpha", m.alpha, 2)
    add("tokens/s", m.rate, 0)
    add("seconds", m.seconds, 2)
    return found


def detail(record: Record) -> dict[str, Any]:
    """All that the page shows of an answer; what only repeats something is left out."""
    end = float(record.get("drained") or record["seconds"])
    gone = Counter(b["position"] for b in record["branches"] if b["outcome"] == "cancelled" and b["role"] != "judge")
    error = record["error"]
    path = accounting.critical_path(record)
    return {
        "question": record["question"],
        "gold": record["gold"],
        "answer": record["answer"],
        "error": f"{error['message']} {error.get('hint') or ''}".strip() if error else None,
        "seconds": record["seconds"],
        "tokens": record["tokens"]["used"],
        "wasted": record["tokens"]["wasted"],
        "judged": record["judged"],
        "accepted": record["accepted"],
        "finish": record["finish"],
        "spoken": _spoken(record, path),
        "steps": [_step(step, gone[n]) for n, step in enumerate(record["steps"])] or _unsplit(record),
        "branches": sorted((_branch(b, end) for b in record["branches"]), key=lambda b: float(b["start"])),
        "path": [vars(piece) for piece in path],
    }


def _step(step: dict[str, Any], abandoned: int) -> dict[str, Any]:
    drafts, text = list(step["draft_texts"]), step["text"]
    chosen = next((i for i, v in enumerate(step["verdicts"]) if v is not None and v["accepted"]), 0)
    shown = {name: step[name] for name in ("source", "outcome", "ending", "tokens", "seconds")}
    said = ("accepted", "by", "reason", "seconds", "failed", "score")
    verdicts = [None if v is None else {name: v.get(name) for name in said} for v in step["verdicts"]]
    if step["source"] == "draft" and not drafts:
        drafts = [text]
    target = step["target_text"]
    if step["source"] == "target":
        target = text  # as it was kept
    more = {"target": target, "drafts": drafts, "verdicts": verdicts, "chosen": chosen, "abandoned": abandoned}
    return {**shown, **more, "text": text if target is None and not drafts else ""}


def _unsplit(record: Record) -> list[dict[str, Any]]:
    """An answer whose steps are not known."""
    if not record["text"]:
        return []
    known = {"source": "target", "outcome": "written", "ending": "delimiter", "seconds": record["seconds"]}
    empty: dict[str, Any] = {"drafts": [], "verdicts": [], "chosen": 0, "abandoned": 0, "text": ""}
    return [{**known, **empty, "tokens": record["tokens"]["used"], "target": record["text"]}]


def _branch(branch: dict[str, Any], end: float) -> dict[str, Any]:
    return {
        "role": branch["role"],
        "position": branch["position"],
        "start": branch["started"],
        "end": end if branch["ended"] is None else branch["ended"],
        "outcome": branch["outcome"] or "cancelled",
        "generated": branch["generated"],
    }


def _spoken(record: Record, path: list[accounting.Span]) -> str:
    """The timeline for those who do not see it."""
    sums = dict.fromkeys(accounting.PARTS, 0.0)
    for piece in path:
        sums[piece.part] += piece.end - piece.start
    said = ", ".join(f"{accounting.MEANING[part]} {spent:.2f} s" for part, spent in sums.items() if spent)
    return f"Timeline of {len(record['branches'])} branches in {record['seconds']:.2f} s. Critical path: {said}"
