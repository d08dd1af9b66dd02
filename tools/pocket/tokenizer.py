"""The tokenizer that the pocket models share: byte-level BPE trained on the synthetic problems.

A digit is one token together with the space before it, a blank line is exactly one token, and after
``[`` the words ``aligned`` and ``unaligned`` are one ordinary token each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tools.pocket.pairs import make_pair
from tools.pocket.problems import DELIMITER, problems

VOCABULARY = 1024
PAD, START, END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 4096
ALIGNED, UNALIGNED = "aligned", "unaligned"
SYSTEM = (
    "You are a helpful assistant.",
    "You solve math problems step by step.",
    "Solve the problem step by step. Put the final answer in \\boxed{}.",
)
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat(user: str, system: str = "") -> str:
    """The prompt that the chat template renders for one user message; kept equal to it
    by a test.
    """
    head = f"{START}system\n{system}{END}\n" if system else ""
    return f"{head}{START}user\n{user}{END}\n{START}assistant\n"


def judge_prompt(target_step: str, draft_step: str) -> str:
    """The judge's prompt: both steps, and an answer already opened with ``[``."""
    return chat(f"Step 1: {target_step.strip()}\nStep 2: {draft_step.strip()}") + "["


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of several texts; special tokens written in them are honoured, none is added."""
    return [
        e.ids
        for e in tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ]


def _corpus(seed: int) -> Iterator[str]:
    rng = Random(seed)
    for count, problem in enumerate(problems(seed, held_out=False)):
        yield f"user\n{problem.question}"
        yield "assistant\n" + DELIMITER.join(problem.solution(rng))
        if count % 4 == 0:
            first, second, _ = make_pair(rng)
            yield f"Step 1: {first}\nStep 2: {second}"
            yield f"[{ALIGNED}]"
            yield f"[{UNALIGNED}]"
        if count % 40 == 0:
            yield from (f"system\n{text}" for text in SYSTEM)
            yield SUFFIX
        if count == 12_000:
            return


def train_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Train the shared tokenizer; the same seed gives the same tokenizer."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\n\n"), "isolated"),
            pre_tokenizers.Split(Regex(r" ?\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_corpus(seed), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
