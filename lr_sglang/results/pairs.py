"""The versions of the steps of a run, for training its draft: what the target wrote where the draft
wrote something else, in the columns that TRL's trainers read.

A row is a step after the prefix that its answer had there. ``prompt`` is the conversation,
``chosen``, ``rejected`` and ``completion`` are the assistant's turn up to the end of the step, of
which the first ``prefix`` characters are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.results.record import Record, is_exact, of_target_alone
from lr_sglang.results.store import replace_file, writing
from lr_sglang.steps.step import DELIMITER, Ending
from lr_sglang.tasks.task import messages

PairRow = dict[str, Any]
# Why a step has no version of the draft beside the target's, by who decided on it (``Verdict.by``).
READ = "read or fed"  # the target wrote no version beside the draft's
WHY_ALONE = {
    "late": "the draft was late",
    "draft": "the draft failed",
    "guard": "the step before was cut",
    "untrusted": "the judge was not trusted",
    "reading": READ,
}
WRITTEN_ALONE = "the target wrote alone"


@dataclass(frozen=True)
class Exported:
    """The files of a mode.

    Attributes:
        pairs: rows of versions that differ; ``alone``: steps without a second version, by reason.
    """

    mode: str
    files: list[Path]
    pairs: int
    steps: int
    alone: Counter[str]

    def words(self) -> str:
        """What is in the files, in a line."""
        apart = ", ".join(f"{number} {why}" for why, number in self.alone.items())
        none = f"; without a second version: {apart}" if apart else ""
        return f"{self.mode}: {self.pairs} pairs that differ, {self.steps} steps{none}"


def export_pairs(records: Callable[[], Iterable[Record]], folder: Path) -> Iterator[Exported]:
    """Writes for each mode ``pairs-MODE.jsonl``, the versions that differ, if there are any, and
    ``sft-MODE.jsonl``, the target's version of every step that has one.

    Args:
        records: reads the records of a run; called for each file, because they stay on the disk.
        folder: where the files go.

    Raises:
        RecordError: there are no steps to export.
    """
    modes = dict.fromkeys(record["mode"] for record in records() if any(pair_rows(record)))
    if not modes:
        raise RecordError(
            f"{folder}: its answers have no steps to train a draft with",
            hint="answers of programs have prompts that the records lack; --mode lookahead",
        )
    for mode in modes:
        counts: Counter[str] = Counter()
        files = []
        for name, kept in (("sft", completion), ("pairs", pair)):
            path = folder / f"{name}-{mode}.jsonl"
            with writing(path, ""):
                replace_file(path, _lines(records(), mode, kept, counts))
            files.append(path)
        if not counts["pair"]:
            files.pop().unlink()
        pairs, steps = counts.pop("pair", 0), counts.pop("completion", 0)
        yield Exported(mode, files, pairs, steps, counts)


def _lines(
    records: Iterable[Record],
    mode: str,
    kept: Callable[[PairRow], PairRow | None],
    counts: Counter[str],
) -> Iterator[bytes]:
    for record in records:
        for row in pair_rows(record) if record["mode"] == mode else ():
            if (made := kept(row)) is None:
                continue
            counts[kept.__name__] += 1
            if alone := made.get("alone"):
                counts[alone] += 1
            yield json.dumps(made, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def pair(row: PairRow) -> PairRow | None:
    """A row for TRL's ``DPOTrainer``; None if the versions do not differ, or there is one only."""
    if row["verdict"] != "rejected" or row["target"] == row["draft"]:
        return None
    return {
        "prompt": row["prompt"],
        "chosen": _turn(row, row["target"]),
        "rejected": _turn(row, row["draft"]),
        "chosen_ends": row["ends"],
        "rejected_ends": not row["draft"].endswith(DELIMITER),
        **_about(row),
    }


def completion(row: PairRow) -> PairRow | None:
    """A row for TRL's ``SFTTrainer``: the target's version; None if an earlier row has it."""
    if row["alternative"]:
        return None
    return {
        "prompt": row["prompt"],
        "completion": _turn(row, row["target"]),
        "completion_ends": row["ends"],
        "verdict": row["verdict"],
        "alone": row["alone"],
        **_about(row),
    }


def _turn(row: PairRow, version: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": row["prefix"] + version}]


def _about(row: PairRow) -> PairRow:
    return {"prefix": len(row["prefix"]), **{name: row[name] for name in _NAMES}}


_NAMES = ("by", "question_id", "sample", "step")


def pair_rows(record: Record) -> Iterator[PairRow]:
    """A row for each drafted version of a step, or one for a step without any; none of a step that
    was cut, and none of a program, whose prompts the record does not have.
    """
    if record["error"] or "program" in record:
        return
    prompt = messages(record["question"], record["config"].get("prompt_suffix") or "")
    prefix = ""
    for number, step in enumerate(record["steps"]):
        own = step["text"] if step["source"] == "target" else step["target_text"]
        about = {
            "prompt": prompt,
            "prefix": prefix,
            "target": own,
            "ends": step["ending"] == Ending.END.value,
            "question_id": record["question_id"],
            "sample": record["sample"],
            "step": number,
        }
        prefix += step["text"]
        if own is None or step["ending"] == Ending.CAP.value:
            continue
        compared = [
            {"draft": text, "by": verdict["by"], "verdict": _said(verdict), "alone": ""}
            for text, verdict in zip(step["draft_texts"], step["verdicts"], strict=False)
            if text is not None and verdict is not None and not _alone(record, number, verdict)
        ]
        for alternative, versions in enumerate(compared or [_only(record, number)]):
            yield about | versions | {"alternative": alternative}


def _said(verdict: dict[str, Any]) -> str:
    return "accepted" if verdict["accepted"] else "rejected"


def _is_exact(record: Record, number: int) -> bool:
    """Whether a step is the target's own: of an exact answer, or of an exact conclusion."""
    return is_exact(record) or record["steps"][number].get("after_thinking", False)


def _alone(record: Record, number: int, verdict: dict[str, Any]) -> str:
    """Why a verdict compared no two versions; empty if it did."""
    if _is_exact(record, number):
        return READ
    return WHY_ALONE.get(verdict["by"], "") or ("no verdict" if verdict["failed"] else "")


def _only(record: Record, number: int) -> PairRow:
    """What is said of a step without a second version."""
    verdicts = [one for one in record["steps"][number]["verdicts"] if one is not None]
    why = next((said for one in verdicts if (said := _alone(record, number, one))), WRITTEN_ALONE)
    if _is_exact(record, number) and not of_target_alone(record, number):
        why = READ
    return {"draft": None, "by": verdicts[0]["by"] if verdicts else "", "verdict": "", "alone": why}
