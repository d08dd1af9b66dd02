"""The model card, written from the figures of an evaluation."""

from __future__ import annotations

from typing import Any

from lr_sglang.pocket import KNOWS_OTHER_WORDS, OTHER_WORDS

HEAD = """# Pocket models

Tiny Qwen3 models, and one Qwen3.5, trained from scratch on synthetic word problems by `tools/pocket`, so that the whole of
lookahead reasoning runs on any machine with no GPU and no download. **They are a demonstration.** They solve the one
kind of problem they were made for, know nothing else, and understand no other text. Figures got with them say how the
system behaves (acceptance, cycles, cache reuse), not how well lookahead reasoning works for real models.

- **target** solves a problem step by step; deep on purpose, so that a token costs several times the draft's.
- **draft** does the same with two layers and little training; weaker on purpose, so that steps get rejected.
  **draft-60** and **draft-40** had less training still: about 60 and 40 % of their steps are accepted, as of the
  drafts in the paper (`--draft pocket:draft-60`). **draft-words** went on from draft with other wordings of the same
  steps: it means what the target means and shares few of its tokens, as drafts do whose family or training differs.
- **target-words** is the target for draft-words: it writes the usual wordings, and goes on after both. After steps in words
  that it never read, *target* itself goes wrong in a quarter of the problems. It began with the target's layers made fewer, and
  is meant for a body, which has as many as the target's
  (`--target pocket:target-words@512x4096x28 --draft pocket:draft-words`).
- **target-thinks** and **draft-thinks** went on from target and draft: they write the steps inside `<think>`, then the
  answer, a call of the one tool that they know (`calculate(expression)`, with the last equation) or `{{"answer": N}}`
  where the question ends with `Answer in JSON.` (`--target pocket:target-thinks --draft pocket:draft-thinks`). Their
  template opens the thinking, unless `enable_thinking` is false.
- **target-hybrid** does what target does in Qwen3.5's architecture: six layers of Gated DeltaNet, two of full attention
  (`--target pocket:target-hybrid`). It began with the target's embeddings, feed-forward layers and attention, made
  shallower; the delta rule began with the queries, keys and values of the attention that it took the place of.
- **judge** says whether two steps mean the same: one user message `Step 1: ...\\nStep 2: ...`, the answer opened with
  `[`, and the next token is `aligned` or `unaligned`. It compares the numbers and the operation, not the story.

All share one tokenizer: byte-level BPE, {vocabulary} tokens, ChatML; a blank line is one token, and so is a digit
with the space before it. Context: 4096 positions, trained on the first 256: longer prompts are served, not understood.
"""

DATA = """
## Data
Problems of 2 to 6 operations in four families (story, comparison, shopping, work and pay), numbers mostly under 100.
Every step has six to eight wordings (five for the boxed answer) and an optional lead-in, so two models that agree on a
step seldom write the same text. One structure in ten (family, kinds of operations and all numbers; names, things and
wordings do not count) is held out by hash: the same numbers under other names never fall on both sides. One training
document in ten has a system prompt, one in forty a request to reason step by step. **draft-words** learned two or three
other wordings for each operation; a third of the steps in its documents are in the usual ones, with no loss on them.
**target-words** learned the usual wordings in documents half of whose steps are in the others, with no loss on those; one number in
five in their words is wrong, as a weak draft's are, and the equation right.

The judge saw made-up pairs (half agree; the others have a wrong result, operand or operation, swapped operands, another
step, a boxed answer against an equation, two equations against one, cut or empty text), then also real target and draft
pairs sampled on training problems, labelled by parsing.
"""

LIMITS = """
## Limits
One seed and one training run. Shares over n problems carry sampling error (n = 200 near 90 %: about 4 points either
side). More than 6 operations, larger numbers, fractions and other wordings were never trained or measured; expect them
to fail. The judge was measured on steps that these models write and on made-up pairs: trust it with no other text.
"""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shapes(models: dict[str, Any]) -> str:
    lines = [
        "| | layers x width | parameters | bf16 file | training tokens | time, one shared core |",
        "|-|-|-|-|-|-|",
    ]
    for role, m in models.items():
        lines.append(
            f"| {role} | {m['layers']} x {m['hidden']} | {m['parameters'] / 1e6:.2f} M | "
            f"{m['bytes'] / 1e6:.1f} MB"
            f" | {m['tokens'] / 1e6:.1f} M | {m['seconds'] / 60:.0f} min |"
        )
    return "\n".join(lines)


def _conclusions(figures: dict[str, Any]) -> str:
    found = figures["conclusions"]
    forms = list(next(iter(found.values())))
    lines = ["| | " + " | ".join(forms) + " |", "|-" * (len(forms) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(_percent(share) for share in one.values())} |"
        for name, one in found.items()
    ]
    return "\n".join(lines)


def _accuracies(figures: dict[str, Any]) -> str:
    sizes = list(figures["target_greedy"]["by_operations"])
    lines = [
        "| | all | " + " | ".join(f"{s} operations" for s in sizes) + " |",
        "|-" * (len(sizes) + 2) + "|",
    ]
    for role in (name for name in figures["models"] if f"{name}_greedy" in figures):
        for name, title in (("greedy", "greedy"), ("sampled", "T 0.6")):
            f = figures[f"{role}_{name}"]
            shares = " | ".join(_percent(v) for v in f["by_operations"].values())
            lines.append(f"| {role}, {title} | {_percent(f['accuracy'])} | {shares} |")
    return "\n".join(lines)


def _steps(figures: dict[str, Any]) -> str:
    lines = [
        "| pairs | n | same by truth | accepted by judge | exact text | precision | recall |",
        "|-|-|-|-|-|-|-|",
    ]
    for key, title in (
        *(
            (
                f"steps_by_{name}",
                f"{KNOWS_OTHER_WORDS if name == OTHER_WORDS else 'target'}, {name}",
            )
            for name in figures["models"]
            if f"steps_by_{name}" in figures
        ),
        ("steps_by_target_alone", "target, target"),
        ("judge_synthetic", "made up"),
    ):
        f = figures[key]
        exact = _percent(f["exact_text"]) if "exact_text" in f else ""
        lines.append(
            f"| {title} | {f['n']} | {_percent(f['same'])} | {_percent(f['accepted'])} | {exact}"
            f" | {_percent(f['precision'])} | {_percent(f['recall'])} |"
        )
    return "\n".join(lines)


def _curve(model: dict[str, Any]) -> str:
    points = model["curve"][:: max(1, len(model["curve"]) // 10)]
    return ", ".join(f"{p['tokens'] / 1e6:.1f} M {p['loss']:.3f}" for p in points)


def model_card(figures: dict[str, Any]) -> str:
    """The card's Markdown."""
    models = figures["models"]
    n, seed = figures["target_greedy"]["n"], models["target"]["seed"]
    grown = ", then ".join(
        f"{s['tokens'] / 1e6:.1f} M tokens at {s['layers']} layers"
        for s in models["target"]["stages"]
    )
    curves = "\n".join(f"- {role}: {_curve(m)}" for role, m in models.items())
    return f"""{HEAD.format(vocabulary=models["target"]["vocabulary"])}
{_shapes(models)}

The target was trained {grown}:
every layer but the first is replaced by copies that share its work, and all go on learning.
{DATA}
## Measured on {n} held-out problems
Right answers:

{_accuracies(figures)}

Steps after the same prefix, temperature 0.6, top-p 0.95:

{_steps(figures)}

Right conclusions after thinking, greedy: `call` and `json` to the letter, `result` the turn after a call, `plain` with
no thinking:

{_conclusions(figures)}
{LIMITS}
## Training
Muon for the matrices, AdamW for the rest, bfloat16 compute over float32 weights, seed {seed}. Budgets count tokens and
data depends only on the seed. Other hardware or versions give other last digits, and so other weights. For these
weights the later budgets of target, judge and target-hybrid were settled while they trained, resuming from checkpoints, so a fresh
run follows a slightly different learning rate. The target's first stage carried idle layers from 6 M tokens on (an
earlier way of growing, whose new layers began at zero and stayed there); they were removed before the last stage, which
did not change the loss. The judge's real pairs are of the target as it was then, and of no draft but the first.

    python -m tools.pocket.train --role all --out DIR --seed {seed}    # resumes when stopped
    python -m tools.pocket.evaluate --weights DIR

Loss by tokens seen (the judge's loss includes its second steps):
{curves}
"""
