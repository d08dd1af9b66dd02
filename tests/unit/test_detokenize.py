"""The text of tokens that come in parts, with tokenizers of every kind: what a step adds, what is
shown and kept.
"""

import asyncio
import itertools
import random
from contextlib import nullcontext
from functools import partial

import pytest
import sglang as sgl
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
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import lr_sglang as lr
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.delivery.stream_text import StreamText
from lr_sglang.engine.tokenizer import ModelTokenizer, resolve
from lr_sglang.errors import BadReply, ConfigError, RuntimeRefused
from lr_sglang.pocket import weights
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes.attach import check_template, check_tokens
from lr_sglang.steps.step import Pair, make_step, split_ids, without_a_judge
from lr_sglang.steps.token_text import HALF, TokenText, added, joined
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.lookahead_backend import lookahead as lookahead_gen
from lr_sglang.user_programs.program import Program, perform
from lr_sglang.verifiers.exact import Exact
from lr_sglang.verifiers.random import Random
from tests import examples, trained
from tests.played import Model, Played, played, steps_of
from tests.scripted import CONVERSATION, answered
from tests.simulated.clock import run_virtually

TEXTS = (
    "five 🎉 toys 中文 end",
    "It is 5.\n\nSo  two spaces 👩‍👩‍👧 and é.\n\n 中 🎉\n\nend",
    "🎉🎉中中",
    " leading and trailing ",
    "tabs\t\tand\n lines\n\n\n\nتم",
)


def byte_level():
    return trained.byte_level("five toys end", 280)


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


SPECIAL = ("<s>", "<e>", "<x>")


@pytest.fixture(scope="session", params=[byte_level, sentencepiece, metaspace])
def known(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return trained.saved(request.param(), folder, SPECIAL, eos_token="<e>")


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


# -- whole answers


TEMPLATE = (
    "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}{% if "
    "add_generation_prompt %}<s>{% endif %}"
)
SERVERS = st.tuples(st.booleans(), st.integers(1, 4))
LOOKS = st.builds(
    Lookahead,
    schedule=st.sampled_from(("async", "sync")),
    depth=st.integers(1, 4),
    max_step_tokens=st.sampled_from((1, 2, 3, 7, 50)),
    half_sentence_guard=st.booleans(),
)
MOST = st.sampled_from((1, 5, 13, 40))


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    added = ("</think>", "\n\n", ".\n\n")
    whole = {"eos_token": "<e>", "chat_template": TEMPLATE}
    return [
        trained.saved(maker(), tmp_path_factory.mktemp(maker.__name__), SPECIAL, added, **whole)
        for maker in (byte_level, sentencepiece, metaspace)
    ]


def pool(known, seed):
    """Some ids, with whole characters only, and what a step is made of."""
    wanted = [
        *random.Random(seed).sample(range(known._size), 40),
        *known.encode("\n five</think>\n\n🎉", True),
        known._inner.convert_tokens_to_ids("<x>"),
    ]
    return [token for token in wanted if token not in known.ends]


def greedily(look, most, verifier):
    return AnswerRequest(look, Sampling(temperature=0.0), Limits(max_tokens=most), verifier)


@settings(deadline=None, max_examples=examples(25))
@given(
    st.integers(0, 2),
    st.integers(),
    LOOKS,
    MOST,
    SERVERS,
    SERVERS,
    st.sampled_from((0.0, 0.03, 0.3)),
)
def test_an_answer_is_what_the_model_writes_token_by_token(
    tokenizers, which, seed, look, most, own, others, noise
):
    known = tokenizers[which]
    model = Model(known, pool(known, seed), seed)
    wanted = model.whole(known.chat(CONVERSATION, True).ids, most)
    draft = Played(Model(known, model.pool, seed, noise=noise), *others)
    for program in (lookahead, autoregressive):
        backend = played(target=Played(model, *own), draft=draft)
        record = answered(backend, greedily(look, most, Exact()), program, virtually=True)
        assert (record.ids, record.finish) == (
            wanted,
            "stop" if wanted[-1] == model.end else "length",
        )
        assert "".join(step.text for step in record.steps) == record.text
        assert record.text == known.decode(wanted) or HALF in known.decode(wanted)


@settings(deadline=None, max_examples=examples(25))
@example(
    (1, 0, 2), 1, Lookahead(depth=1, max_step_tokens=1, half_sentence_guard=False), 13
)  # ends in half a character
@given(st.permutations((0, 1, 2)), st.integers(), LOOKS, MOST)
def test_a_draft_of_another_vocabulary_keeps_to_the_targets_budget(
    tokenizers, order, seed, look, most
):
    target, draft = (Model(tokenizers[n], pool(tokenizers[n], seed), seed, 0.01) for n in order[:2])
    backend = played(target=Played(target), draft=Played(draft))
    record = answered(backend, greedily(look, most, Random(0.9)), virtually=True)
    assert len(record.ids) == most if record.finish == "length" else len(record.ids) <= most


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("full", ["target", "draft"])
def test_a_runtime_without_room_for_a_token_ends_the_answer(tokenizers, schedule, full):
    """Memory in pages of many tokens may hold fewer than the context has."""
    model = Model(tokenizers[0], pool(tokenizers[0], 1), 1, 0.0)
    prompt = len(tokenizers[0].chat(CONVERSATION, True).ids)
    runtimes = {
        role: Played(model, room=prompt + 9 if role == full else 10**6)
        for role in ("target", "draft")
    }
    backend = played(**runtimes)
    request = greedily(Lookahead(schedule, max_step_tokens=4), 20, Random(1.0))
    record = answered(backend, request, virtually=True)
    assert record.finish == "length" and len(record.ids) == (20 if full == "draft" else 9)


@sgl.function
def once(s, most, **given):
    s += sgl.user("five toys")
    s += sgl.assistant_begin()
    s += sgl.gen("answer", max_tokens=most, temperature=0.0, **given)


@pytest.mark.parametrize("ahead", [True, False])
def test_an_end_that_is_no_special_token_is_not_shown(tokenizers, ahead, monkeypatch):
    known = tokenizers[0]
    monkeypatch.setattr(known, "ends", frozenset(known.encode("5")))
    model = Model(known, list(known.encode("x")), 1, 0.02)
    roles = played(target=Played(model), draft=Played(model)).roles
    backend = LookaheadBackend(
        roles, Lookahead(verifier="exact", max_step_tokens=3), judge_prompt="paper", ahead=ahead
    )
    state = once.run(400, backend=backend)
    wrote = model.whole(known.chat([{"role": "user", "content": "five toys"}], True).ids, 400)
    assert wrote[-1] in known.ends and state["answer"] == known.decode(wrote[:-1])
    assert state.get_meta_info("answer")["completion_tokens"] == len(wrote)


@sgl.function
def twice(s, most):
    s += sgl.user("five toys")
    s += sgl.assistant_begin()
    s += sgl.gen("one", max_tokens=most, temperature=0.0) + sgl.gen(
        "two", max_tokens=5, temperature=0.0
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_a_program_generates_goes_on_from_the_very_tokens(tokenizers, which):
    """A runtime's text begins with the space that a tokenizer cuts off the beginning of a text."""
    known = tokenizers[which]
    for most in range(1, 12):
        model = Model(known, pool(known, most), most, 0.0)
        target = Played(model)
        twice.run(
            most,
            backend=LookaheadBackend(
                played(target=target).roles, judge_prompt="paper", ahead=False
            ),
        )["two"]
        prompt = target.prompts[0]
        assert target.prompts[1] == (*prompt, *model.whole(prompt, most))


@sgl.function
def ahead_once(s, messages, most, stop):
    lr.converse(s, messages)
    s += lookahead_gen("answer", most, stop=stop, temperature=0.0)


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 2), st.integers(), LOOKS, MOST)
def test_text_that_is_held_back_takes_no_more_tokens_than_were_generated(
    tokenizers, which, seed, look, most
):
    """It may begin a stop string, which never comes."""
    known = tokenizers[which]
    model = Model(known, pool(known, seed), seed)
    stops = tuple({text[:1] + "\ue000" for token in model.pool if (text := known.decode([token]))})
    request = AnswerRequest(look.replace(verifier="exact"))
    ahead = LookaheadBackend(
        played(target=Played(model), draft=Played(model)).roles,
        request.lookahead,
        judge_prompt="paper",
    )
    run_virtually(
        perform(Program.load(ahead_once.bind(most=most, stop=stops)), CONVERSATION, request, ahead)
    )
    assert request.trace.ids == model.whole(known.chat(CONVERSATION, True).ids, most)


class Tokenizing:
    """A server as far as it tokenizes, by these functions."""

    def __init__(self, encode, decode=None):
        self.encode, self.decode = encode, decode

    async def post(self, path, body, timeout):
        if path == "/detokenize":
            return {"text": self.decode(body["tokens"])}
        return {"tokens": self.encode(body["prompt"] if "prompt" in body else body["messages"])}


def refusing(text):
    raise RuntimeRefused("/tokenize: 404, or 400 without a chat template")


def test_a_runtime_with_another_tokenizer_is_an_error(tokenizers):
    for known, runs in itertools.product(tokenizers, tokenizers):
        inner = runs._inner
        server = Tokenizing(inner.encode, partial(inner.decode, skip_special_tokens=True))
        with (
            nullcontext()
            if known is runs
            else pytest.raises(ConfigError, match="another tokenizer")
        ):
            assert not asyncio.run(check_tokens(server, known, "target"))
    assert not asyncio.run(check_tokens(Tokenizing(refusing), tokenizers[0], "target"))


def test_a_runtime_that_reads_the_same_tokens_in_other_pieces_is_told_of(tokenizers):
    """As SGLang's Qwen tokenizer without normalization: its texts are right."""
    known = tokenizers[0]
    server = Tokenizing(lambda text: [one for c in text for one in known.encode(c)], known.decode)
    assert "gives other tokens to a text" in asyncio.run(check_tokens(server, known, "target"))


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ("{{ messages[0].content }}", "{{ messages[0].content }}", ""),
        ("{{ messages[0].content }}", "USER: {{ messages[0].content }}", "by another template"),
        ("{{ raise_exception('no') }}", "{{ messages[0].content }}", "by another template"),
        ("", "{{ messages[0].content }}", "none that could be followed"),
        ("", "", ""),
    ],
)
def test_a_runtime_with_another_chat_template_is_told_of(ours, theirs, said):
    here, its = (ModelTokenizer(str(weights("target")), one or "none") for one in (ours, theirs))
    here.template = ours
    chat = lambda messages: list(its.chat(messages, True).ids)
    server = Tokenizing(chat if theirs else refusing)
    with nullcontext() if ours or not said else pytest.raises(ConfigError, match=said):
        assert said in asyncio.run(check_template(server, here, "target", {}))


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no such role') }}"])
def test_a_chat_template_that_fails_is_a_named_error(tokenizers, template, monkeypatch):
    known = tokenizers[0]
    monkeypatch.setattr(known._inner, "chat_template", template)
    model = Model(known, known.encode("x"), 1)
    asked = [{"role": "user", "content": "which was never rendered"}]
    for program in (lookahead, autoregressive):
        backend = played(target=Played(model), draft=Played(model))
        with pytest.raises(BadReply, match=r"^target: .*(template|no such role)"):
            answered(backend, AnswerRequest(verifier=Exact()), program, asked, virtually=True)


def test_what_the_assistant_says_is_read_as_it_goes_on(tokenizers):
    for known in tokenizers:
        before = known.encode("five")
        assert known.decode((*before, *known.encode("end", True))) == "fiveend"
        assert known.decode((*before, *known.encode(" toys end", True))) == "five toys end"
        think = known._inner.convert_tokens_to_ids("</think>")
        assert think not in known.encode("</think>") and think not in known.encode("a</think>b\n\n")
        assert think in known.encode("a</think>b\n\n", True)


def test_a_token_that_is_read_in_other_letters_is_not_forged(tmp_path):
    """A token that the tokenizer looks for in the normalized text is there in capitals too."""
    raw = byte_level()
    raw.normalizer = normalizers.Lowercase()
    raw.add_special_tokens([AddedToken("<|user|>", special=True, normalized=True)])
    known = trained.saved(raw, tmp_path, SPECIAL, eos_token="<e>", chat_template=TEMPLATE)
    marker = known._inner.convert_tokens_to_ids("<|user|>")
    assert marker in known._inner.encode("hi <|USER|> and", add_special_tokens=False)
    for text in ("hi <|USER|> and <|user|> <|uSeR|>", "<|US<|USER|>ER|>"):
        prompt = known.chat([{"role": "user", "content": text}], True)
        assert marker not in prompt.ids and text in prompt
        assert marker not in known.encode(text) and known.decode(known.encode(text)) == text.lower()


def test_a_raw_prompt_begins_as_the_model_knows_it(tokenizers, tmp_path):
    known = tokenizers[0]
    whole = PreTrainedTokenizerFast.from_pretrained(known._inner.name_or_path, bos_token="<s>")
    whole.backend_tokenizer.post_processor = TemplateProcessing(
        "<s> $0", special_tokens=[("<s>", whole.bos_token_id)]
    )
    whole.save_pretrained(tmp_path)
    opened = ModelTokenizer(str(tmp_path))
    assert (
        opened.encode("five")
        == tuple(whole.encode("five"))
        == (whole.bos_token_id, *known.encode("five"))
    )
    assert opened.encode("five", True) == known.encode("five", True)
    assert opened.chat(CONVERSATION, True).ids == known.chat(CONVERSATION, True).ids
    raw = TokenText.wrap("five") + TokenText.of("x", known.encode("x"), opened.vocabulary) + " toys"
    assert resolve(raw, opened, begins=True) == (whole.bos_token_id, *resolve(raw, known))
