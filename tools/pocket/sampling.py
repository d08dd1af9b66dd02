"""Generating with the pocket models through transformers, in batches: whole solutions and single
steps.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tools.pocket.meaning import same_meaning
from tools.pocket.problems import DELIMITER, Problem, problems
from tools.pocket.tokenizer import ALIGNED, END, chat, encode, judge_prompt

BATCH = 100
SOLUTION_TOKENS, STEP_TOKENS = 200, 60
TEMPERATURE, TOP_P = 0.6, 0.95


class Writer:
    """One model with its tokenizer, in float32 as it is served on a CPU."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            folder, padding_side="left"
        )
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.end = self.tokenizer.convert_tokens_to_ids(END)
        self.delimiter = encode(self.tokenizer, [DELIMITER])[0][0]

    def _padded(self, prompts: list[str]) -> dict[str, Tensor]:
        ids = encode(self.tokenizer, prompts)
        return dict(self.tokenizer.pad({"input_ids": ids}, return_tensors="pt"))

    @torch.inference_mode()
    def write(self, prompts: list[str], temperature: float, one_step: bool = False) -> list[str]:
        """A continuation of each prompt: a step up to the delimiter, or everything up to the end of
        sequence.
        """
        how = (
            {"do_sample": True, "temperature": temperature, "top_p": TOP_P, "top_k": 0}
            if temperature
            else {"do_sample": False}
        )
        texts = [""] * len(prompts)
        order = sorted(
            range(len(prompts)), key=lambda i: len(prompts[i])
        )  # alike lengths, little padding
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            inputs = self._padded([prompts[i] for i in chosen])
            output = self.model.generate(
                **inputs,
                **how,
                max_new_tokens=STEP_TOKENS if one_step else SOLUTION_TOKENS,
                eos_token_id=[self.end, self.delimiter] if one_step else [self.end],
                pad_token_id=self.tokenizer.pad_token_id,
            )
            new = output[:, inputs["input_ids"].shape[1] :]
            for i, text in zip(
                chosen, self.tokenizer.batch_decode(new, skip_special_tokens=True), strict=True
            ):
                texts[i] = text
        return texts

    @torch.inference_mode()
    def judge(self, pairs: list[tuple[str, str]]) -> list[bool]:
        """Whether the next token after ``[`` is ``aligned``; any other token counts as a
        rejection.
        """
        aligned = self.tokenizer.convert_tokens_to_ids(ALIGNED)
        verdicts: list[bool] = []
        for start in range(0, len(pairs), BATCH):
            inputs = self._padded([judge_prompt(a, b) for a, b in pairs[start : start + BATCH]])
            positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            logits = self.model(**inputs, position_ids=positions, logits_to_keep=1).logits[:, -1]
            verdicts += (logits.argmax(-1) == aligned).tolist()
        return verdicts


def steps_of(text: str) -> list[str]:
    """The steps of a solution, without delimiters."""
    return [step for step in text.split(DELIMITER) if step.strip()]


def prefixes(problem: Problem, solution: str) -> list[str]:
    """The prompt of ``problem`` followed by the first 0, 1, 2... steps of ``solution``, one for
    each of its steps.
    """
    steps = steps_of(solution)
    return [
        chat(problem.question) + "".join(step + DELIMITER for step in steps[:n])
        for n in range(len(steps))
    ]


def real_pairs(target: Path, draft: Path, count: int, seed: int) -> list[tuple[str, str, bool]]:
    """Pairs (target's step, draft's step, same meaning) after the same prefixes, on ``count``
    training problems.

    Followed by pairs of two versions by the target itself.
    """
    source = problems(seed + 77, held_out=False)
    chosen = [next(source) for _ in range(count)]
    return [
        (a, b, same_meaning(a, b))
        for a, b in sample_pairs(Writer(target), Writer(draft), chosen, seed)
    ]


def sample_pairs(
    target: Writer, draft: Writer, chosen: list[Problem], seed: int, twice: bool = True
) -> list[tuple[str, str]]:
    """Both models' versions of every step after the target's own prefix; ``twice`` adds target
    against target.
    """
    torch.manual_seed(seed)
    solutions = target.write([chat(p.question) for p in chosen], TEMPERATURE)
    prompts = [
        prefix for p, text in zip(chosen, solutions, strict=True) for prefix in prefixes(p, text)
    ]
    ours, theirs = (
        target.write(prompts, TEMPERATURE, one_step=True),
        draft.write(prompts, TEMPERATURE, one_step=True),
    )
    pairs = list(zip(ours, theirs, strict=True))
    if twice:
        again = Random(seed).sample(prompts, len(prompts) // 4)
        versions = dict(zip(prompts, ours, strict=True))
        pairs += [
            (versions[p], text)
            for p, text in zip(again, target.write(again, TEMPERATURE, one_step=True), strict=True)
        ]
    return pairs
