"""Result folders of the paper's own code, as records: a JSON file a question,
``PREFIX_DATE_TIME_NUMBER/0.json``.

They hold an answer, its time and its tokens, but no steps, no model names and no mode.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.results.record import SCHEMA, Record
from lr_sglang.tasks.boxed import boxed, correct

_FOLDER = re.compile(r"(?P<prefix>.*)_\d{8}_\d{6}_\d+$")
_FILE = re.compile(r"\d+\.json$")
_NEEDED = ("question", "generation_text", "time_taken")


def is_reference(folder: Path) -> bool:
    """Whether a folder looks like a result folder of the paper's code."""
    return folder.is_dir() and any(_FILE.match(path.name) for path in folder.iterdir())


def read(folder: Path, mode: str = "", task: str = "") -> list[Record]:
    """Its records, in the order of the questions.

    Args:
        mode: of the run; the files do not have it.
        task: our name of it; by default the folder's prefix.

    Raises:
        RecordError: a file is no JSON object, or lacks a field that all of them have.
    """
    named = _FOLDER.match(folder.name)
    task = task or (named["prefix"] if named else folder.name)
    files = sorted(
        (path for path in folder.iterdir() if _FILE.match(path.name)),
        key=lambda path: int(path.stem),
    )
    return [_record(path, mode or "unknown", task) for path in files]


def _record(path: Path, mode: str, task: str) -> Record:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: this is no JSON file", hint="cut off as it was written? delete it"
        ) from error
    missing = [name for name in _NEEDED if not isinstance(table, dict) or name not in table]
    if missing:
        raise RecordError(f"{path}: no result of the reference: it has no {', '.join(missing)}")
    try:
        seconds, ids = float(table["time_taken"]), table.get("generation_tokens")
        known = len(ids) if isinstance(ids, list) else ids
        tokens = round(float(table.get("speed") or 0) * seconds) if known is None else int(known)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: time_taken or speed is no number") from error
    text, gold = str(table["generation_text"]), table.get("gold")
    gold, answer = None if gold is None else str(gold), boxed(text)
    target, draft = (
        of if isinstance(of := table.get(f"{role}_config"), dict) else {}
        for role in ("target", "draft")
    )
    # Names of families at best; the target's configuration names the judge.
    models = {
        "target": target.get("name"),
        "draft": draft.get("name"),
        "judge": target.get("judge_model"),
    }
    config: dict[str, Any] = {
        "questions": task,
        "runtimes": {role: {"model": str(name)} for role, name in models.items() if name},
        "sampling": {
            name: target[name] for name in ("temperature", "top_p", "top_k") if name in target
        },
    }
    return {
        **{
            "schema": SCHEMA,
            "question_id": str(table.get("question_id", path.stem)),
            "sample": 0,
            "mode": mode,
        },
        **{"question": str(table["question"]), "gold": gold, "text": text, "answer": answer},
        **{"correct": correct(answer, gold), "error": None, "finish": "", "seconds": seconds},
        **{
            "judged": 0,
            "accepted": 0,
            "alpha": None,
            "cycles": 0,
            "failures": {},
            "steps": [],
            "branches": [],
        },
        "tokens": {"used": tokens, "generated": tokens, "wasted": 0},
        "config": config,
        "versions": {"made_by": "reference"},
    }
