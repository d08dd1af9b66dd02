"""Training data: pools of documents made from (seed, pool number), packed into rows of one length.

A pool depends only on the seed and its number, so training resumes exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerFast

from tools.pocket.pairs import make_pair
from tools.pocket.problems import DELIMITER, make_problem
from tools.pocket.tokenizer import (
    ALIGNED,
    END,
    SUFFIX,
    SYSTEM,
    UNALIGNED,
    chat,
    encode,
    judge_prompt,
)

if TYPE_CHECKING:
    from torch import Tensor

POOL = 640  # documents
Pair = tuple[str, str, bool]


@dataclass
class Document:
    """Token ids, and the weight of the loss on predicting each."""

    ids: list[int]
    weights: list[float]


@dataclass
class Batch:
    """Packed rows. ids, positions, targets, weights: (rows, length); mask: (rows, 1, length,
    length).
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor
    mask: Tensor
    tokens: int


def solutions(tokenizer: PreTrainedTokenizerFast, rng: Random, easy: bool) -> list[Document]:
    """Problems with a solution; loss on the solution only. One in eight has a system prompt or a
    request added.
    """
    prompts: list[str] = []
    answers: list[str] = []
    while len(prompts) < POOL:
        problem = make_problem(rng, high=3 if easy else 6)
        if problem.held_out:
            continue
        way = rng.random()
        system = rng.choice(SYSTEM) if way < 0.1 else ""
        prompts.append(
            chat(problem.question + (f"\n{SUFFIX}" if 0.1 <= way < 0.125 else ""), system)
        )
        answers.append(DELIMITER.join(problem.solution(rng)) + END)
    return [
        Document(p + a, [0.0] * len(p) + [1.0] * len(a))
        for p, a in zip(encode(tokenizer, prompts), encode(tokenizer, answers), strict=True)
    ]


def other_words(
    tokenizer: PreTrainedTokenizerFast, rng: Random, *, written: bool
) -> list[Document]:
    """Problems with a solution in which some steps are in other wordings. The model learns to write
    one kind of steps, and to go on after both; there is no loss on the other kind.

    Args:
        written: whether it writes the other wordings, in which two of three steps are then. If not,
            half of them are, and say a wrong number now and then, as a weak draft does.
    """
    share, slips = (2 / 3, 0.0) if written else (1 / 2, 0.2)
    documents: list[Document] = []
    while len(documents) < POOL:
        problem = make_problem(rng)
        if problem.held_out:
            continue
        usual, other = problem.solution(rng), problem.other_solution(rng, slips)
        differs = [rng.random() < share for _ in usual]
        texts = [
            (o if own else u) + (END if last else DELIMITER)
            for u, o, own, last in zip(
                usual, other, differs, [*[False] * (len(usual) - 1), True], strict=True
            )
        ]
        prompt, *steps = encode(tokenizer, [chat(problem.question), *texts])
        made = Document(prompt, [0.0] * len(prompt))
        for ids, own in zip(steps, differs, strict=True):
            made.ids += ids
            made.weights += [float(own == written)] * len(ids)
        documents.append(made)
    return documents


def judgements(tokenizer: PreTrainedTokenizerFast, rng: Random, real: list[Pair]) -> list[Document]:
    """Pairs of steps with a verdict. Two in five are real ones, where there are any.

    For pairs that agree, a small loss is on the second step too, which makes the model attend to
    the first.
    """
    pairs = [
        rng.choice(real) if real and rng.random() < 0.4 else make_pair(rng) for _ in range(POOL)
    ]
    if real:
        pairs = [(b, a, same) if rng.random() < 0.2 else (a, b, same) for a, b, same in pairs]
    verdicts = tokenizer.convert_tokens_to_ids([UNALIGNED, ALIGNED])
    tail = encode(tokenizer, ["]" + END])[0]
    prompts = encode(tokenizer, [judge_prompt(a, b) for a, b, _ in pairs])
    heads = encode(
        tokenizer, [judge_prompt(a, "").split("Step 2:")[0] + "Step 2:" for a, _, _ in pairs]
    )
    documents = []
    for (_, _, same), prompt, head in zip(pairs, prompts, heads, strict=True):
        language = 0.2 if same else 0.0
        weights = (
            [0.0] * len(head) + [language] * (len(prompt) - len(head)) + [4.0] + [0.1] * len(tail)
        )
        documents.append(Document([*prompt, verdicts[same], *tail], weights))
    return documents


def pack(documents: list[Document], length: int) -> list[list[Document]]:
    """Rows of documents of at most ``length`` predictions each, first fit from the longest down."""
    rows: list[list[Document]] = []
    space: list[int] = []
    for document in sorted(documents, key=lambda d: -len(d.ids)):
        need = len(document.ids) - 1
        if need > length:
            continue
        for index, free in enumerate(space):
            if free >= need:
                rows[index].append(document)
                space[index] -= need
                break
        else:
            rows.append([document])
            space.append(length - need)
    return rows


def collate(rows: list[list[Document]], length: int) -> Batch:
    """Tensors of packed rows; a document sees only itself, padding only itself."""
    import torch

    shape = (len(rows), length)
    ids, positions, targets = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    weights, owner = torch.zeros(shape), torch.zeros(shape, dtype=torch.long)
    tokens = 0
    for r, row in enumerate(rows):
        at = 0
        for number, document in enumerate(row, start=1):
            n = len(document.ids) - 1
            span = slice(at, at + n)
            ids[r, span] = torch.tensor(document.ids[:-1])
            targets[r, span] = torch.tensor(document.ids[1:])
            weights[r, span] = torch.tensor(document.weights[1:])
            positions[r, span] = torch.arange(n)
            owner[r, span] = number
            at += n
            tokens += n
    visible = (owner[:, :, None] == owner[:, None, :]).tril()
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]
    return Batch(ids, positions, targets, weights, mask, tokens)


def batches(documents: list[Document], length: int, rows: int, rng: Random) -> Iterator[Batch]:
    """Batches of exactly ``rows`` rows (one compiled shape); the last few rows of a pool are
    dropped.
    """
    packed = pack(documents, length)
    rng.shuffle(packed)
    for start in range(0, len(packed) - rows + 1, rows):
        yield collate(packed[start : start + rows], length)
