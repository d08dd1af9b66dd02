"""Whole answers over tokenizers of every kind, compared with a model that is asked token
by token.
"""

import asyncio
import itertools
import random
from contextlib import nullcontext

import pytest
import sglang as sgl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import lr_sglang as lr
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.tokenizer import ModelTokenizer, resolve
from lr_sglang.errors import BadReply, ConfigError, RuntimeRefused
from lr_sglang.frontend.dsl import run_program
from lr_sglang.pocket import weights
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes.attach import check_template, check_tokens
from lr_sglang.steps.detokenize import HALF
from lr_sglang.steps.token_text import TokenText
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.lookahead_backend import lookahead as lookahead_gen
from lr_sglang.user_programs.program import Program, perform
from lr_sglang.verifiers.exact import Exact
from lr_sglang.verifiers.random import Random
from tests import examples
from tests.integration.test_semantics import QUESTION
from tests.played import Model, Played, played
from tests.simulated.clock import run_virtually
from tests.unit.test_detokenize import byte_level, metaspace, sentencepiece

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
    made = []
    for maker in (byte_level, sentencepiece, metaspace):
        raw, folder = maker(), str(tmp_path_factory.mktemp(maker.__name__))
        raw.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "<e>", "<x>")])
        raw.add_tokens(
            [
                AddedToken(token, special=False, normalized=False)
                for token in ("</think>", "\n\n", ".\n\n")
            ]
        )
        whole = PreTrainedTokenizerFast(
            tokenizer_object=raw, eos_token="<e>", chat_template=TEMPLATE
        )
        whole.save_pretrained(folder)
        made.append(ModelTokenizer(folder))
    return made


def pool(known, seed):
    """Some ids, with whole characters only, and what a step is made of."""
    drawn = random.Random(seed).sample(range(known._size), 40)
    wanted = [
        *drawn,
        *known.encode("\n five</think>\n\n🎉", True),
        known._inner.convert_tokens_to_ids("<x>"),
    ]
    return [token for token in wanted if token not in known.ends]


def answered(program, backend, look, most, verifier=None):
    job = AnswerRequest(look, Sampling(temperature=0.0), Limits(max_tokens=most), verifier=verifier)
    run_virtually(run_program(program, QUESTION, job, backend=backend))
    return job.record


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
    wanted = model.whole(known.chat(QUESTION, True).ids, most)
    draft = Played(Model(known, model.pool, seed, noise=noise), *others)
    for program in (lookahead, autoregressive):
        record = answered(
            program, played(target=Played(model, *own), draft=draft), look, most, Exact()
        )
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
    record = answered(
        lookahead, played(target=Played(target), draft=Played(draft)), look, most, Random(0.9)
    )
    assert len(record.ids) == most if record.finish == "length" else len(record.ids) <= most


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("full", ["target", "draft"])
def test_a_runtime_without_room_for_a_token_ends_the_answer(tokenizers, schedule, full):
    """Memory in pages of many tokens may hold fewer than the context has."""
    model = Model(tokenizers[0], pool(tokenizers[0], 1), 1, 0.0)
    prompt = len(tokenizers[0].chat(QUESTION, True).ids)
    runtimes = {
        role: Played(model, room=prompt + 9 if role == full else 10**6)
        for role in ("target", "draft")
    }
    backend = played(**runtimes)
    record = answered(lookahead, backend, Lookahead(schedule, max_step_tokens=4), 20, Random(1.0))
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
    job = AnswerRequest(look.replace(verifier="exact"))
    ahead = LookaheadBackend(
        played(target=Played(model), draft=Played(model)).roles, job.lookahead, judge_prompt="paper"
    )
    run_virtually(
        perform(Program.load(ahead_once.bind(most=most, stop=stops)), QUESTION, job, ahead)
    )
    assert job.record.ids == model.whole(known.chat(QUESTION, True).ids, most)


def test_a_runtime_with_another_tokenizer_is_an_error(tokenizers):
    class Server:
        async def post(self, path, body, timeout):
            return {"tokens": self.known._inner.encode(body["prompt"], add_special_tokens=False)}

    class Silent:
        async def post(self, path, body, timeout):
            raise RuntimeRefused("/tokenize: 404")

    for known, runs in itertools.product(tokenizers, tokenizers):
        server = Server()
        server.known = runs
        with (
            nullcontext()
            if known is runs
            else pytest.raises(ConfigError, match="another tokenizer")
        ):
            asyncio.run(check_tokens(server, known, "target"))
    asyncio.run(check_tokens(Silent(), tokenizers[0], "target"))


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
    class Server:
        async def post(self, path, body, timeout):
            if not theirs:
                raise RuntimeRefused("/tokenize: 400, no chat template")
            return {"tokens": list(its.chat(body["messages"], True).ids)}

    here, its = (ModelTokenizer(str(weights("target")), one or "none") for one in (ours, theirs))
    here.template = ours
    with nullcontext() if ours or not said else pytest.raises(ConfigError, match=said):
        assert said in asyncio.run(check_template(Server(), here, "target", {}))


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no such role') }}"])
def test_a_chat_template_that_fails_is_a_named_error(tokenizers, template, monkeypatch):
    known = tokenizers[0]
    monkeypatch.setattr(known._inner, "chat_template", template)
    model, asked = (
        Model(known, known.encode("x"), 1),
        [{"role": "user", "content": "which was never rendered"}],
    )
    for program in (lookahead, autoregressive):
        backend, job = (
            played(target=Played(model), draft=Played(model)),
            AnswerRequest(verifier=Exact()),
        )
        with pytest.raises(BadReply, match=r"template|no such role") as caught:
            run_virtually(run_program(program, asked, job, backend=backend))
        assert caught.value.role == "target"


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
    raw.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "<e>")])
    raw.add_special_tokens([AddedToken("<|user|>", special=True, normalized=True)])
    PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<e>", chat_template=TEMPLATE
    ).save_pretrained(tmp_path)
    known = ModelTokenizer(str(tmp_path))
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
    assert opened.chat(QUESTION, True).ids == known.chat(QUESTION, True).ids
    raw = TokenText.wrap("five") + TokenText.of("x", known.encode("x"), opened.vocabulary) + " toys"
    assert resolve(raw, opened, begins=True) == (whole.bos_token_id, *resolve(raw, known))
