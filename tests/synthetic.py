"""Records of runs that never were: with known alpha, c1, verdict time and accuracy, in the form
that a run writes.

An answer follows the async schedule on a clock of its own, as ``theory.judged`` has it, with steps
of uneven length.
"""

import json
import random
from dataclasses import dataclass

from lr_sglang.config import ROLES

TOKENS_A_STEP = 20
NONE = {
    "sd": {"verified": 0, "drafted": 0, "accepted": 0},
    "calls": 0,
    "prefills": 0,
    "passes": 0,
    "generated": 0,
    "prompt": 0,
    "cached": 0,
    "shareable": 0,
    "reused": 0,
    "reuse": None,
    "hit_rate": None,
}


@dataclass(frozen=True)
class Truth:
    """What a run is made of; times are in seconds. ``loss`` is by how much lookahead is less
    accurate, as a share.
    """

    alpha: float = 0.6
    c1: float = 0.1
    judge: float = 0.04
    step: float = 0.2
    depth: int = 6
    accuracy: float = 0.8
    loss: float = 0.0
    steps: int = 12
    token_layer: float = 1.0


def run(
    truth,
    questions=20,
    samples=2,
    seed=0,
    modes=("autoregressive", "lookahead"),
    task="synthetic",
    **more,
):
    """The records of all modes; ``more`` goes into them."""
    chance = random.Random(seed)
    records = []
    for number in range(questions):
        easy = min(1.0, max(0.0, truth.accuracy + chance.uniform(-0.15, 0.15)))
        length = max(2, round(truth.steps * chance.lognormvariate(0, 0.4)))
        for sample in range(samples):
            for mode in modes:
                ahead = mode.startswith("lo")
                right = chance.random() < easy - truth.loss * ahead
                steps = max(1, round(length * chance.uniform(0.8, 1.25)))
                faster = truth.token_layer if mode.endswith("sd") else 1.0
                made = (lookahead if ahead else alone)(truth, steps, chance, truth.step / faster)
                records.append(
                    record(f"{task}-{number:03}", sample, mode, right, task, truth, *made) | more
                )
    return records


def uneven(chance):
    """The length of a step over that of an average one; a draft of c1 below a half is
    never late.
    """
    return chance.uniform(0.7, 1.3)


def alone(truth, count, chance, step):
    """The target decodes all steps in one branch."""
    lengths = [uneven(chance) for _ in range(count)]
    seconds = step * sum(lengths)
    whole = branch("target", 0, 0.0, seconds, "bonus", sum(map(tokens, lengths)))
    return [kept(n, one, "target", "written", seconds, count) for n, one in enumerate(lengths)], [
        whole
    ]


def lookahead(truth, count, chance, step):
    """Cycles of the async schedule, until the answer ends."""
    steps, branches, now = [], [], 0.0
    while len(steps) < count:
        now = cycle(truth, count, chance, step, steps, branches, now)
    return steps, branches


def cycle(truth, count, chance, step, steps, branches, began):
    """From one step of the target's own to the next; returns when that is kept."""
    base, drafted, verdicts = len(steps), began, []
    for ahead in range(count - base):
        place = base + ahead
        window = verdicts[ahead - truth.depth] if ahead >= truth.depth else began
        start = max(drafted, window)
        wrote, drew = uneven(chance), uneven(chance)
        drafted, written = start + step * truth.c1 * drew, start + step * wrote
        ready = max(drafted, written)
        decided = max([ready + truth.judge, *verdicts[-1:]])
        agrees = chance.random() < truth.alpha
        source, outcome, judged = (
            ("draft", "accepted", "accepted") if agrees else ("target", "corrected", "rejected")
        )
        branches += [
            branch("draft", place, start, drafted, judged, tokens(drew)),
            branch("target", place, start, written, outcome, tokens(wrote)),
            branch("judge", place, ready, ready + truth.judge, judged, 1),
        ]
        length = drew if agrees else wrote
        steps.append(kept(place, length, source, outcome, decided, count, truth.judge, agrees))
        verdicts.append(decided)
        if not agrees:
            gone = [
                (start + step * truth.c1 * n, place + n)
                for n in range(1, min(truth.depth, count - place))
            ]
            branches += [
                branch("target", n, at, decided + 0.002, "cancelled", 5)
                for at, n in gone
                if at < decided
            ]
            break
    return verdicts[-1]


def tokens(length):
    return round(TOKENS_A_STEP * length)


def kept(position, length, source, outcome, seconds, count, judge=0.0, agrees=None):
    ending = "end of sequence" if position == count - 1 else "delimiter"
    words = f"Step {position}: {position} + {position} = {2 * position}.\n\n"
    return {
        "position": position,
        "text": words,
        "tokens": tokens(length),
        "source": source,
        "outcome": outcome,
        "ending": ending,
        "seconds": round(seconds, 6),
        "target_text": words if agrees is not None else None,
        "draft_texts": []
        if agrees is None
        else [words if agrees else f"Or {position} * 2 = {position}2?\n\n"],
        "verdicts": [] if agrees is None else [verdict(agrees, seconds=judge)],
        "confidences": [],
    }


def verdict(accepted, by="judge", seconds=0.3, failed=False):
    told = {"accepted": accepted, "by": by, "reason": "", "seconds": seconds, "failed": failed}
    return {**told, "score": None, "earlier": []}


def branch(role, position, started, ended, outcome, generated):
    return {
        "role": role,
        "position": position,
        "alternative": 0,
        "seed": 0,
        "started": round(started, 6),
        "ended": round(ended, 6),
        "prompt": 50,
        "cached": 40,
        "shareable": 40,
        "generated": generated,
        "sd": None,
        "outcome": outcome,
        "error": "",
    }


def config(mode, truth, task):
    layer = (
        {"algorithm": "ngram", "tokens": 8}
        if mode.endswith("sd")
        else {"algorithm": "none", "tokens": None}
    )
    look = {"schedule": "async", "depth": truth.depth, "width": 1, "verifier": "judge"}
    roles = ROLES if mode.startswith("lo") else ROLES[:1]
    return {
        "questions": task,
        "mode": mode,
        "runtimes": {role: {"model": f"made-up:{role}", "token_layer": layer} for role in roles},
        "sampling": {"temperature": 0.6, "top_p": 0.95, "seed": 0},
        "limits": {"max_tokens": None},
        "lookahead": look if mode.startswith("lo") else None,
    }


def record(name, sample, mode, right, task, truth, steps, branches):
    judged, accepted = (
        sum(bool(s["verdicts"]) for s in steps),
        sum(s["source"] == "draft" for s in steps),
    )
    used = sum(s["tokens"] for s in steps)
    generated = sum(b["generated"] for b in branches if b["role"] != "judge")
    return {
        "schema": 1,
        "question_id": name,
        "sample": sample,
        "mode": mode,
        "question": f"What is {name}?",
        "gold": "1",
        "extra": {},
        "seed": 0,
        "seeded": True,
        "text": "".join(s["text"] for s in steps),
        "answer": "1" if right else "2",
        "correct": right,
        "error": None,
        "finish": "stop",
        "seconds": steps[-1]["seconds"],
        "drained": steps[-1]["seconds"],
        "prompt_tokens": 50,
        "cycles": len(steps) - accepted,
        "judged": judged,
        "accepted": accepted,
        "alpha": accepted / judged if judged else None,
        "tokens": {
            "used": used,
            "generated": generated,
            "wasted": generated - used,
            **{role: {**NONE, "calls": sum(b["role"] == role for b in branches)} for role in ROLES},
        },
        "outcomes": {},
        "failures": {},
        "ids_digest": "",
        "steps": steps,
        "branches": branches,
        "config": config(mode, truth, task),
        "versions": {},
    }


def write(folder, records, **about):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run.json").write_text(json.dumps({"schema": 1, "config": {}, **about}))
    return folder
