"""One self-contained HTML page of runs: questions, step trees with both versions, timelines."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lr_sglang.results import accounting
from lr_sglang.results.record import Record, ReportRow, acceptance_figure, is_exact, of_target_alone
from lr_sglang.results.report import NONE, Measures, Report, cell, times

HERE = Path(__file__).parent
# Shared with the endpoint's page, which uses them as modules; here they form one script.
SHARED = HERE / "shared"
SCRIPTS = (
    *(SHARED / f"{name}.js" for name in ("words", "glyph", "boxed", "row", "steps", "timeline")),
    HERE / "page.js",
)
STYLES = (SHARED / "colours.css", HERE / "page.css", SHARED / "steps.css")
# The syntax of a module that a script must not have.
_MODULE = re.compile(r"^(?:import .*\n|export )", re.MULTILINE)
SEARCHED = 400  # characters of a question that the filter looks at


def page(report: Report, title: str) -> Iterator[str]:
    """The page in pieces, because as one string it would be in memory twice."""
    script = "\n".join(_MODULE.sub("", path.read_text(encoding="utf-8")) for path in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {
        "TITLE": html.escape(title),
        "STYLE": "\n".join(path.read_text(encoding="utf-8") for path in STYLES),
        "SCRIPT": script,
        "SCRIPT_HASH": f"sha256-{digest}",
        "INDEX": inert(index(report)),
    }
    # One pass over the template: inserted text is not searched for placeholders.
    for number, part in enumerate((HERE / "page.html").read_text(encoding="utf-8").split("%")):
        if number % 2 == 0:
            yield part
        elif part == "RECORDS":
            for n, row in enumerate(report.collection.rows):
                text = inert(detail(row.whole()))
                yield f'<script type="application/json" id="r{n}">{text}</script>\n'
        else:
            yield values[part]


def inert(table: Any) -> str:
    """JSON for a script element: no text in it can end the element or begin another."""
    text = (
        json.dumps(table, ensure_ascii=False, separators=(",", ":"))
        .encode("utf-8", "replace")
        .decode()
    )
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def index(report: Report) -> dict[str, Any]:
    """The data of the list and the summary; an answer's details are read when it is opened."""
    records: list[dict[str, Any]] = []
    for number, group in enumerate(report.collection.groups):
        for record in group.rows:
            words = " ".join(
                (record["question_id"], record["question"][:SEARCHED], str(record["answer"] or ""))
            )
            about = {
                "n": len(records),
                "id": record["question_id"],
                "task": group.task,
                "sample": record["sample"],
            }
            about |= {"group": number, "result": result(record), "seconds": record["seconds"]}
            kept, share = acceptance_figure(record, exact=group.exact)
            about |= {"kept": kept, "share": share, "search": words.lower()}
            records.append(about)
    tasks = len(report.collection.tasks)
    models = report.collection.models
    return {
        "about": f"{len(records)} answers, {tasks} task{'s' * (tasks > 1)}"
        + (f"; {models}" if models else ""),
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


def result(record: ReportRow) -> str:
    """``failed``, ``correct``, ``wrong`` or ``ungraded``."""
    return (
        "failed"
        if record["error"]
        else {True: "correct", False: "wrong", None: "ungraded"}[record["correct"]]
    )


def _facts(m: Measures) -> list[list[str]]:
    """Name, value and interval."""
    said = {
        "accuracy": cell(m.accuracy, 1, 100, " %"),
        "speed-up": times(m.speed.tokens if m.speed else None),
        m.acceptance[0]: cell(m.acceptance[1], 2),
        "tokens/s": cell(m.rate, 0),
        "seconds": cell(m.seconds, 2),
    }
    parts = ((name, *words.partition(" (")) for name, words in said.items() if words != NONE)
    return [[name, value, interval and f"({interval}"] for name, value, _, interval in parts]


def detail(record: Record) -> dict[str, Any]:
    """The details of an answer, without fields that the page derives from others."""
    end = float(record.get("drained") or record["seconds"])
    gone = Counter(
        b["position"]
        for b in record["branches"]
        if b["outcome"] == "cancelled" and b["role"] != "judge"
    )
    error = record["error"]
    path = accounting.critical_path(record)
    branches = sorted(
        (_branch(branch, end) for branch in record["branches"]), key=lambda b: float(b["began"])
    )
    return {
        **{name: record[name] for name in ("question", "gold", "answer")},
        "error": f"{error['message']} {error.get('hint') or ''}".strip() if error else None,
        "seconds": record["seconds"],
        "tokens": record["tokens"]["used"],
        "wasted": record["tokens"]["wasted"],
        "finish": record["finish"],
        "of": (
            [record["agreed_tokens"], record["read_tokens"]]
            if acceptance_figure(record, exact=is_exact(record))[0] == "agreement"
            else [record["accepted"], record["judged"]]
        ),
        "spoken": _spoken(record),
        "steps": [
            _step(step, gone[n]) | {"alone": of_target_alone(record, n)}
            for n, step in enumerate(record["steps"])
        ],
        "branches": [*branches, *map(_piece, path)],
    }


def _step(step: dict[str, Any], abandoned: int) -> dict[str, Any]:
    """A row of the step tree: the versions of a step and their states, in the form of
    ``shared/row.js``.
    """
    verdicts = step["verdicts"]
    own = step["source"] == "target"
    drafts = step["draft_texts"] or ([] if own else [step["text"]])
    chosen = next((i for i, v in enumerate(verdicts) if v is not None and v["accepted"]), 0)

    def version(text: str | None, **more: Any) -> dict[str, Any]:
        return {
            "text": text or "",
            "tokens": 0,
            "began": None,
            "ended": None if text is None else 0,
            **more,
        }

    def draft(number: int, text: str | None) -> dict[str, Any]:
        verdict = verdicts[number] if number < len(verdicts) else None
        state = "cancelled" if verdict is None or verdict["accepted"] else "rejected"
        return version(
            text, verdict=verdict, state="accepted" if number == chosen and not own else state
        )

    said = (
        []
        if step["outcome"] == "written"
        else [f"kept at {step['seconds']:.2f} s", f"{step['tokens']} tokens"]
    )
    said += [f"ended by {step['ending']}"] if step["ending"] != "delimiter" else []
    said += [f"branches given up: {abandoned}"] if abandoned else []
    return {
        "kept": step["source"],
        "outcome": step["outcome"],
        "seconds": step["seconds"],
        "note": f"{'; '.join(said).capitalize()}." if said else "",
        "target": version(step["text"] if own else step["target_text"], state=""),
        "drafts": [draft(number, text) for number, text in enumerate(drafts)],
    }


def _branch(branch: dict[str, Any], end: float) -> dict[str, Any]:
    shown = {name: branch[name] for name in ("role", "position", "generated")}
    ended = end if branch["ended"] is None else branch["ended"]
    return {
        **shown,
        "began": branch["started"],
        "ended": ended,
        "state": branch["outcome"] or "cancelled",
    }


def _piece(piece: accounting.Span) -> dict[str, Any]:
    """A span of the critical path, in the form of a branch."""
    at = {"position": piece.position, "began": piece.start, "ended": piece.end, "generated": 0}
    return {"role": "path", "part": piece.part, "state": "", **at}


def _spoken(record: Record) -> str:
    """The timeline in words, for a screen reader."""
    spent = accounting.parts(record).items()
    said = ", ".join(
        f"{accounting.MEANING[part]} {seconds:.2f} s" for part, seconds in spent if seconds
    )
    return (
        f"Timeline of {len(record['branches'])} branches in {record['seconds']:.2f} s. "
        f"Critical path: {said}"
    )
