"""Every kind of end at every place around a cap: the answer is the one of plain decoding, whatever
the runtime says.
"""

import itertools

import pytest
import sglang as sgl

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead
from lr_sglang.errors import BadReply
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.branch import until
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.lookahead_backend import lookahead as ahead_gen
from lr_sglang.verifiers.exact import Exact
from tests import FULL
from tests.scripted import (
    CONVERSATION,
    END,
    VERIFIERS,
    Agreeing,
    CharTokenizer,
    ScriptedTransport,
    ShiftedTokenizer,
    ShiftedTransport,
    Whole,
    answered,
    deployment,
    goes_on,
    made,
    other_vocabulary,
)

CAP = 6
E = chr(END)
KINDS = {"end": E, "think": "</think>\n\nx" + E, "delimiter": "\n\nbc" + E, "cut": "defghijklm" + E}
PLACES = range(CAP - 3, 2 * CAP + 2)
# what is looked at first, tokens of a pass
SERVERS = tuple(itertools.product((True, False), (1, 2, 3)))


def runtimes(answer, server, drafted=None):
    """Target, draft and judge; the judge, the ratings and the log-probabilities find everything
    right.
    """
    target = ScriptedTransport(
        lambda text, s: "9" if s["max_new_tokens"] == 1 and "digit" in text else own(text, s)
    )
    own = goes_on(answer)
    draft = ScriptedTransport(goes_on(drafted or answer))
    judge = ScriptedTransport(lambda text, s: "A")
    for one in (target, draft):
        one.length_first, one.passes = server
    backend = deployment(target=target, draft=draft, judge=judge)
    backend.roles["judge"].tokenizer = Whole()
    return backend


def plain(answer, server, messages=CONVERSATION):
    request = AnswerRequest(Lookahead(max_step_tokens=CAP))
    return answered(runtimes(answer, server), request, autoregressive, messages)


def looked_ahead(answer, server, verifier, schedule, drafted=None):
    backend = runtimes(answer, server, drafted)
    request = AnswerRequest(
        Lookahead(schedule, depth=2, max_step_tokens=CAP), verifier=made(verifier, backend.roles)
    )
    return answered(backend, request)


def rendered(backend):
    """As the endpoint gives it."""
    return backend.tokenizer.chat(CONVERSATION, True)


def same(record, answer):
    assert (record.text, record.ids, record.finish) == (
        answer[:-1],
        tuple(map(ord, answer)),
        "stop",
    )
    assert [s.ending for s in record.steps].count("end of sequence") == 1
    assert record.steps[-1].ending == "end of sequence"


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_end_around_the_cap_ends_the_answer_there(kind, schedule):
    for number, (place, server) in enumerate(itertools.product(PLACES, SERVERS)):
        answer = "abcdefghijklmnop"[:place] + KINDS[kind]
        for messages in (CONVERSATION, rendered):
            same(plain(answer, server, messages), answer)
        # a draft that ends elsewhere, and one that ends in the same place
        if FULL or number % 3 == 0:
            same(looked_ahead(answer, server, "exact", schedule, answer[: place - 1] + E), answer)
        same(looked_ahead(answer, server, "exact", schedule), answer)


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name != "exact"])
def test_no_verifier_goes_on_after_the_end(verifier):
    cases = itertools.product(PLACES, KINDS, SERVERS, ("async", "sync"))
    for place, kind, server, schedule in itertools.islice(cases, 0, None, 1 if FULL else 23):
        answer = "abcdefghijklmnop"[:place] + KINDS[kind]
        same(looked_ahead(answer, server, verifier, schedule), answer)


@pytest.mark.parametrize("most", [7, 8, 9, 10, 11])
def test_an_end_that_is_the_last_token_of_the_budget_is_an_end(most):
    answer = "abc\n\nefg" + E
    for server in SERVERS:
        ended = len(answer) <= most
        for verifier in (None, "exact"):
            backend = runtimes(answer, server)
            request = AnswerRequest(Lookahead(max_step_tokens=50), limits=Limits(max_tokens=most))
            request.verifier = verifier and made(verifier, backend.roles)
            record = answered(backend, request, lookahead if verifier else autoregressive)
            assert record.finish == ("stop" if ended else "length")
            assert record.ids == tuple(map(ord, answer))[:most]


@sgl.function
def told(s, most, **given):
    s += sgl.user("?")
    s += sgl.assistant_begin()
    s += sgl.gen("answer", max_tokens=most, temperature=0.0, **given)


@pytest.mark.parametrize("server", SERVERS)
def test_a_program_that_ignores_the_end_gets_what_comes_after_it(server):
    for most in range(1, 12):
        backend = LookaheadBackend(
            runtimes("abc" + E + "defghijklmnop", server).roles, judge_prompt="paper"
        )
        state = told.run(most, ignore_eos=True, backend=backend)
        assert state["answer"] == ("abc" + E + "defghijklmnop")[:most].replace(E, "")
        assert state.get_meta_info("answer")["finish_reason"]["type"] == "length"
        assert backend.counts == {"ignore_eos": 1}


@pytest.mark.parametrize("server", SERVERS)
def test_a_program_is_told_of_an_end_at_its_cap(server):
    """SGLang 0.5.16 says ``length``."""
    roles = runtimes("abc" + E, server).roles
    for most, finish in ((3, "length"), (4, "stop"), (5, "stop")):
        state = told.run(most, backend=LookaheadBackend(roles, judge_prompt="paper", ahead=False))
        assert state["answer"] == "abc"
        assert state.get_meta_info("answer")["finish_reason"]["type"] == finish


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_stop_string_around_the_cap_is_never_shown(place, server):
    """In a ``gen`` of the target alone, which is cut by the server, and in one by lookahead, which
    we cut.
    """
    answer = "abcdefghijklmnop"[:place] + "STOP" + "after" + E

    @sgl.function
    def program(s):
        s += sgl.user("?")
        s += sgl.assistant_begin()
        s += ahead_gen(
            "answer", place + 4, "STOP", max_step_tokens=CAP, verifier="exact", temperature=0.0
        )

    for ahead in (True, False):
        state = program.run(
            backend=LookaheadBackend(
                runtimes(answer, server).roles, judge_prompt="paper", ahead=ahead
            )
        )
        assert state["answer"] == answer[:place]
        assert state.get_meta_info("answer")["finish_reason"] == {"type": "stop", "matched": "STOP"}


def test_nothing_is_asked_for_after_a_stop_string():
    roles = runtimes("".join(f"step {n}\n\n" for n in range(60)) + E, (True, 1)).roles
    backend = LookaheadBackend(roles, Lookahead(depth=2, verifier="exact"), judge_prompt="paper")
    assert told.run(900, stop="2\n", backend=backend)["answer"] == "step 0\n\nstep 1\n\nstep "
    assert len(roles["target"].transport.requests) < 10


@pytest.mark.parametrize(
    ("ids", "most", "stops", "kept", "finish"),
    [
        ("abc", 2, (), "ab", "length"),  # a pass that exceeds the cap
        ("ab" + E + "c", 4, (), "ab" + E, "stop"),
        ("abc" + E, 3, (), "abc", "length"),
        ("abSTOPc", 7, ("STOP",), "abSTOPc", "stop"),
        ("abcd", 4, ("bcd", "c"), "abcd", "stop"),
    ],
)
def test_a_reply_counts_up_to_the_first_end(ids, most, stops, kept, finish):
    """Cap, end of sequence, or the stop string that ends first; whatever the server says."""
    tokens, known = tuple(map(ord, ids)), CharTokenizer()
    found, why, text = until(
        tokens, {"type": "length"}, ids, most=most, ends={END}, stops=stops, decode=known.decode
    )
    assert "".join(map(chr, found)) == kept and why["type"] == finish
    assert text == ("ab" if stops else kept.rstrip(E))


@pytest.mark.parametrize("asked", ["    if x:\n        y()", "\n\n  a", " ", "\t", "a \n"])
def test_what_a_user_says_arrives_as_it_is(asked):
    """SGLang's interpreter cuts the white space before every turn."""
    said = [
        {"role": "system", "content": " \n" + asked + "be brief"},
        {"role": "user", "content": "  first"},
        {"role": "assistant", "content": "\n\nan answer\n"},
        {"role": "user", "content": "   "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": asked},
    ]
    backend = runtimes("abc" + E, (True, 1))
    autoregressive.run(said, AnswerRequest(), backend=backend)
    assert (
        tuple(backend.transport.requests[0]["input_ids"]) == backend.tokenizer.chat(said, True).ids
    )


def test_an_end_that_only_the_runtime_knows_is_known_from_its_first_report():
    backend = runtimes("abcde" + E, (True, 1))
    backend.ends = frozenset()
    # the end is not at the cap: it is reported
    autoregressive.run(rendered, AnswerRequest(Lookahead(max_step_tokens=4)), backend=backend)
    assert backend.ends == {END}
    state = told.run(6, stop_token_ids=[ord("c")], backend=backend)
    assert state["answer"] == "ab" and backend.ends == {END}, (
        "an id that a program asked for is no end of the model"
    )


def test_a_model_without_numbers_is_an_error():
    class Broken(ScriptedTransport):
        def _reply(self, *given):
            reply = super()._reply(*given)
            reply["meta_info"]["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
            return reply

    with pytest.raises(BadReply, match="NaN"):
        autoregressive.run(
            CONVERSATION, AnswerRequest(), backend=deployment(target=Broken(goes_on("ab" + E)))
        ).sync()


class Bytes(CharTokenizer):
    """One token for each byte."""

    vocabulary = "bytes"

    def encode(self, text, answer=False):
        return tuple(byte + 10 for byte in text.encode())

    def decode(self, ids):
        return bytes(one - 10 for one in ids if one >= 10).decode("utf-8", "replace")


MANY_BYTES = "a 🎉中\n\né🎉 b\n\n</think>\n\nتم end 👩‍👧"


def in_bytes(drafted=MANY_BYTES):
    """Runtimes that write bytes; a blank line ends a step there too."""
    wrote = [
        "".join(chr(one) for one in Bytes().encode(text)) + E for text in (MANY_BYTES, drafted)
    ]
    target, draft = (ByteTransport(goes_on(one)) for one in wrote)
    backend = deployment(target=target, draft=draft)
    for one in backend.roles.values():
        one.tokenizer = Bytes()
    return backend


class ByteTransport(ScriptedTransport):
    def _reply(self, payload, text, sampling, aborted):
        stop = sampling.get("stop") and "".join(map(chr, Bytes().encode(sampling["stop"])))
        reply = super()._reply(payload, text, {**sampling, "stop": stop}, aborted)
        return {**reply, "text": Bytes().decode(reply["output_ids"])}


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("cap", [1, 2, 3, 5, 50])
def test_no_cap_destroys_a_character(schedule, cap):
    for guard, drafted in itertools.product(
        (True, False), (MANY_BYTES, MANY_BYTES.replace("é", "è"), "zzz")
    ):
        look = Lookahead(schedule, depth=3, max_step_tokens=cap, half_sentence_guard=guard)
        record = answered(in_bytes(drafted), AnswerRequest(look, verifier=Exact()))
        assert record.text == MANY_BYTES == Bytes().decode(record.ids)
        assert "".join(step.text for step in record.steps) == MANY_BYTES
    for most in range(1, len(MANY_BYTES.encode()), 1 if FULL else 5):
        request = AnswerRequest(
            Lookahead(schedule, max_step_tokens=cap),
            limits=Limits(max_tokens=most),
            verifier=Exact(),
        )
        record = answered(in_bytes(), request)
        assert record.text == MANY_BYTES.encode()[:most].decode("utf-8", "replace")


@pytest.mark.parametrize("cap", [1, 2, 3, 5])
def test_what_a_program_generates_has_whole_characters(cap):
    backend = LookaheadBackend(
        in_bytes().roles, Lookahead(max_step_tokens=cap, verifier="exact"), judge_prompt="paper"
    )
    assert told.run(500, backend=backend)["answer"] == MANY_BYTES


@pytest.mark.parametrize("forged", ["One.\x02\x01\n\nTwo.", "\x01One.\n\nTwo.", "One.\n\nTwo.\x02"])
def test_no_verifier_accepts_a_draft_with_other_special_tokens(forged):
    for schedule, verifier in itertools.product(("async", "sync"), VERIFIERS):
        backend = runtimes("One.\n\nTwo." + E, (True, 1), forged + E)
        request = AnswerRequest(
            Lookahead(schedule, depth=2), verifier=made(verifier, backend.roles)
        )
        assert not any(one < END for one in answered(backend, request).ids)


@pytest.mark.parametrize("most", range(1, 9))
def test_a_step_in_another_vocabulary_is_within_the_budget_of_the_target(most):
    """Its blank line is one token there, and two of the target's."""

    class InTokens(ShiftedTransport):
        async def generate(self, payload, request, timeout):
            sampling = payload["sampling_params"]
            more = {**sampling, "max_new_tokens": sampling["max_new_tokens"] + 1}
            return await super().generate({**payload, "sampling_params": more}, request, timeout)

    target = ScriptedTransport(goes_on("ab\n\ncd" + E))
    draft = InTokens(goes_on("One.\n\nTwo." + E))
    record = other_vocabulary(target, draft, Lookahead("sync"), Agreeing(), max_tokens=most)
    assert len(record.ids) <= most


class Stripping(ShiftedTokenizer):
    """Cuts the space before the first token, as SentencePiece's decoder does."""

    def decode(self, ids):
        return super().decode(ids).removeprefix(" ")


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_what_the_target_goes_on_from_is_the_answer_in_whatever_tokens_it_was_drafted(schedule):
    answer = "One.\n\n two.\n\n  three.\n\nfour."
    target, draft = ScriptedTransport(goes_on(answer + E)), ShiftedTransport(goes_on(answer + E))
    record = other_vocabulary(target, draft, Lookahead(schedule, depth=2), Agreeing(), Stripping)
    assert record.accepted > 1 and record.text == answer
    assert "".join(map(chr, record.ids)) == answer, "in the target's own tokens"
    assert all((answer + E).startswith(one["text"]) for one in target.requests)
