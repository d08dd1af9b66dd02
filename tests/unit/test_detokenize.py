"""The text of tokens that come in parts, with tokenizers of every kind: what a step adds, what is
shown and kept.
"""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from lr_sglang.engine.tokenizer import ModelTokenizer, resolve
from lr_sglang.frontend.stream_text import StreamText
from lr_sglang.steps.detokenize import HALF, added, joined
from lr_sglang.steps.step import completed, make_step, split_ids
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.tree import Pair, without_a_judge
from tests import examples

TEXTS = (
    "five 🎉 toys 中文 end",
    "It is 5.\n\nSo  two spaces 👩‍👩‍👧 and é.\n\n 中 🎉\n\nend",
    "🎉🎉中中",
    " leading and trailing ",
    "tabs\t\tand\n lines\n\n\n\nتم",
)


def byte_level():
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["five toys end"], trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet)
    )
    return raw


def sentencepiece():
    """As Llama 2's: a space before the first word, bytes for what is unknown; its decoder takes
    that space off.
    """
    words = ["▁", "▁five", "▁toys", "▁end", "▁It", "▁is", "e", "n", "d", "s", "o", "i", "t", "."]
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocabulary |= {word: 257 + number for number, word in enumerate(words)}
    raw = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return raw


def metaspace():
    """As T5's and others': words with their space, cut off before the first."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    alphabet = sorted(set("".join(TEXTS)))
    raw.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=120, initial_alphabet=alphabet, unk_token="<unk>")
    )
    return raw


@pytest.fixture(scope="session", params=[byte_level, sentencepiece, metaspace])
def known(request, tmp_path_factory):
    raw = request.param()
    raw.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "<e>", "<x>")])
    folder = str(tmp_path_factory.mktemp(request.param.__name__))
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<e>").save_pretrained(folder)
    return ModelTokenizer(folder)


def steps_of(ids, cuts, known):
    """The steps of an answer that is cut there."""
    steps, at = [], 0
    for end in (*cuts, len(ids)):
        while at < end:  # what is after a delimiter is another step
            steps.append(
                make_step(ids[at:end], "length", steps[-1] if steps else None, known, known.ends)
            )
            at += len(steps[-1].ids)
    return [*steps[:-1], *(completed(last, known) for last in steps[-1:])]


def test_the_text_of_a_program_is_that_of_all_its_tokens(known):
    """Which were generated apart, and decoded apart; what the program adds itself stays
    as it is.
    """
    ids = known.encode(TEXTS[0])
    for cut in range(1, len(ids)):
        parts = [
            TokenText.of(known.decode(part), part, known.vocabulary)
            for part in (ids[:cut], ids[cut:])
        ]
        assert joined(parts[0] + parts[1], known.vocabulary, known.decode) == known.decode(ids)
        said = joined("So: " + parts[0] + " (" + parts[1] + ")", known.vocabulary, known.decode)
        assert HALF in said or said == f"So: {parts[0]} ({parts[1]})"
        assert (
            joined(parts[0] + parts[1], "another", known.decode) == str.__str__(parts[0]) + parts[1]
        )


def test_what_stands_after_other_tokens_gets_no_space_of_its_own(known):
    ids = known.encode("five toys")
    for text in ("five", " toys", " (five", ".five", "\n\nfive", "\nfive", " "):
        whole = resolve(TokenText.of("five toys", ids, known.vocabulary) + text, known)
        unknown = known.decode(known.encode("x" + text)) != "x" + text
        assert unknown or (whole[: len(ids)], known.decode(whole)) == (ids, "five toys" + text)
    assert resolve("five toys", known, begins=True) == ids


words = st.lists(
    st.sampled_from(("five", " toys", " ", "\n", "\n\n", "🎉", "中", "é", "end", "  ", ".")),
    max_size=12,
)


def text_in_parts(ids, sizes, known):
    whole = known.decode(ids)
    tail, shown, at = (), "", 0
    for size in (*sizes, len(ids)):
        read = added(tail, ids[at : at + size], known.decode, at + size >= len(ids))
        tail, shown, at = read.tail, shown + read.text, at + size
        assert whole.startswith(shown) or HALF in whole
        if at >= len(ids):
            return shown
    raise AssertionError("unreachable")


@settings(max_examples=examples(100))
@example("🎉🎉", 7, [5])
@example(TEXTS[1], 200, [1] * 200)
@example(TEXTS[2], 200, [1] * 200)
@example(TEXTS[4], 200, [1] * 200)
@given(words.map("".join), st.integers(1, 60), st.lists(st.integers(1, 9), max_size=30))
def test_an_answer_has_one_text_however_it_comes(known, text, most, sizes):
    """Also one that is cut in a character: SentencePiece gives up the characters before it, where it
    is asked for the text of all of them at once.
    """
    ids, whole = known.encode(text)[:most], known.decode(known.encode(text))
    shown = text_in_parts(ids, sizes, known)
    assert shown == text_in_parts(ids, (), known)
    assert whole.startswith(shown.rstrip(HALF))
    ends = [end for end in itertools.accumulate(sizes) if end < len(ids)]
    for steps in (split_ids(ids, "length", known, frozenset()), steps_of(ids, ends, known)):
        assert "".join(step.text for step in steps) == shown
    pieces, delivery = [], StreamText(known.decode)
    for begin, end in itertools.pairwise((0, *ends, len(ids))):
        pieces += delivery.add(ids[begin:end])
    pieces += delivery.rest()
    assert "".join(piece.text for piece in pieces) == shown and delivery.tokens == len(ids)
    assert HALF in shown or all(HALF not in one.text for one in (*steps, *pieces))
    assert len(ids) == most or shown == whole


@settings(max_examples=examples(100))
@example([0xCC, 0xD5, 0xCC, 0xD5, 0xBD], [1, 1, 1, 1])
@given(
    st.lists(st.sampled_from(b"a\n\xf0\x9f\x8e\x89\xe4\xff\xbd\xd5"), max_size=20),
    st.lists(st.integers(1, 5)),
)
def test_bytes_that_are_no_text_lose_none_that_are(run, sizes):
    class Bytes:
        def decode(self, ids):
            return bytes(ids).decode("utf-8", "replace")

    assert text_in_parts(tuple(run), sizes, Bytes()) == Bytes().decode(run)


def special_cases(known):
    s, x = (known._inner.convert_tokens_to_ids(name) for name in ("<s>", "<x>"))
    plain = known.encode("five toys")
    return plain, (*plain[:1], s, x, *plain[1:]), (s, *plain), (*plain, len(known._inner) + 5)


def test_special_tokens_are_no_part_of_a_text_and_make_it_another_step(known):
    plain, *others = (
        make_step(ids, "stop", None, known, known.ends) for ids in special_cases(known)
    )
    assert without_a_judge(Pair(plain, plain)) is None
    for other in others:
        assert other.special and not plain.special
        for pair in (Pair(plain, other), Pair(other, plain)):
            assert without_a_judge(pair).by == "special"
            assert without_a_judge(pair, words=False) is None
        assert without_a_judge(Pair(other, other)) is None


def test_a_stop_string_is_counted_in_tokens_wherever_the_text_was_cut(known):
    ids = known.encode("five toys end")
    for cut in range(1, len(ids)):
        delivery = StreamText(known.decode, ("end",))
        shown = [*delivery.add(ids[:cut]), *delivery.add(ids[cut:]), *delivery.rest()]
        before = "".join(piece.text for piece in shown)
        assert before == known.decode(ids).partition("end")[0] and delivery.stopped
        assert len(known.decode(ids[: delivery.tokens])) >= len(before.rstrip())
        assert delivery.tokens <= len(ids) and known.decode(ids[: delivery.tokens - 1]) != before
