"""Texts that begin alike have the tokens that each of them has by itself, with every kind of
tokenizer.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from lr_sglang.engine.encoded_texts import HEAD, KEPT, MARGIN, PrefixEncoder
from tests import examples

GPT4 = (  # as of Qwen, Llama 3 and others
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = ("</think>", "<tool_response>", "\n\n\n")
CUT = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt-4": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT4), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    ),
    "deepseek": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(True),
            pre_tokenizers.Split(Regex(r"\n"), "isolated"),
            pre_tokenizers.ByteLevel(False),
        ]
    ),
    "bert": pre_tokenizers.BertPreTokenizer(),
    "whole": None,
}
INSTRUCTIONS = (
    "You are given two versions of one step of a solution. Decide whether they mean the same.\n" * 6
)
PIECES = (
    *(
        "So the cost",
        " has",
        " ",
        "  ",
        90 * " ",
        "\n",
        "\n\n",
        "12",
        "3.5",
        "'s",
        "e\u0301",
        "\u0301",
        "🎉",
        "中文",
    ),
    *("<tool", "_response>", *ADDED),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def tokenizer(cut, normalizer):
    raw = Tokenizer(models.BPE(unk_token="?"))
    if cut is not None:
        raw.pre_tokenizer = cut
    if normalizer is not None:
        raw.normalizer = normalizer
    alphabet = [*pre_tokenizers.ByteLevel.alphabet(), *"".join(PIECES)]
    said = [INSTRUCTIONS, "So the cost has", *(9 * ("x\n" + n * " " + "\nx") for n in range(9))]
    raw.train_from_iterator(
        said, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    raw.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return raw


@pytest.fixture(
    scope="module", params=[(name, nfc) for name in CUT for nfc in (False, True)], ids=str
)
def raw(request):
    name, nfc = request.param
    return tokenizer(CUT[name], normalizers.NFC() if nfc else None)


@settings(max_examples=examples(20))
@given(st.lists(TEXTS, min_size=2, max_size=4), st.integers(0, len(INSTRUCTIONS)))
def test_each_text_has_the_tokens_that_it_has_alone(raw, texts, shared):
    encoder = PrefixEncoder(raw, max(map(len, ADDED)))
    for text in texts:
        prompt = INSTRUCTIONS[: max(HEAD, shared)] + texts[0][: shared // 2] + text
        assert encoder.encode(prompt) == raw.encode(prompt, add_special_tokens=False).ids
    assert all(known.right is not False for known in encoder._known.values())


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, raw):
        self.raw, self.characters = raw, 0

    def encode(self, text, add_special_tokens):
        self.characters += len(text)
        return self.raw.encode(text, add_special_tokens=add_special_tokens)

    def encode_batch_fast(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]


def test_the_beginning_is_tokenized_only_for_the_first_two():
    raw = Counting(tokenizer(CUT["gpt-4"], None))
    encoder = PrefixEncoder(raw, 0)
    for number in range(3):
        raw.characters = 0
        encoder.encode(INSTRUCTIONS + f"Step {number}")
    assert raw.characters < MARGIN + 32


def test_a_tokenizer_that_puts_something_in_front_is_noticed():
    raw = tokenizer(CUT["gpt-2"], normalizers.Prepend("_"))
    encoder = PrefixEncoder(raw, 0)
    for number in range(4):
        text = INSTRUCTIONS + f"Step {number}"
        assert encoder.encode(text) == raw.encode(text, add_special_tokens=False).ids
    assert [known.right for known in encoder._known.values()] == [False]


def test_a_few_beginnings_are_remembered():
    encoder = PrefixEncoder(tokenizer(CUT["gpt-2"], None), 0)
    for number in range(KEPT + 5):
        encoder.encode(f"{number} {INSTRUCTIONS}")
    assert len(encoder._known) == KEPT


@pytest.mark.parametrize(
    ("same", "ends"),
    [
        (
            "So\n" + 200 * " ",
            ("x", "\n", ""),
        ),  # with a line's end the blanks are one word with the one before
        ("So </thi", ("nk>", "s", "")),
        ("So the co", ("st", "at", "")),
        ("12", ("3", "34", "")),
        ("e", ("\u0301", "e", "")),
    ],
)
def test_what_follows_may_change_the_last_words(raw, same, ends):
    for first in ends:
        encoder = PrefixEncoder(raw, max(map(len, ADDED)))
        for end in (first, first, *ends):
            prompt = INSTRUCTIONS + same + end
            assert encoder.encode(prompt) == raw.encode(prompt, add_special_tokens=False).ids
