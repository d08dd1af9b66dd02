"""What a step is: where it ends, how it ended, and which tokens belong to it."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lr_sglang.steps.step as steps_module
from lr_sglang.steps.step import (
    DELIMITER,
    Ending,
    Step,
    delimiter_end,
    make_step,
    same_ending,
    split,
    split_ids,
)
from tests import examples

EOS = 3
WORDS = {
    10: "One",
    11: " two",
    12: ".",
    13: "\n",
    14: "\n\n",
    15: ".\n\n",
    16: "\n\n\n",
    17: "\n\nThen",
    18: "</think>",
}


def decode(ids):
    return "".join(WORDS.get(i, chr(i)) for i in ids)


class Known:
    vocabulary = "v"

    def __init__(self, decode=decode):
        self.decode = decode

    def special(self, ids):
        return tuple(one for one in ids if one <= EOS)


KNOWN = Known()


def made(ids, finish="stop", before="", eos=(EOS,)):
    cut = Step(before, (), Ending.CAP, vocabulary="v") if before else None
    return make_step(ids, finish, cut, KNOWN, frozenset(eos))


def test_the_examples_in_the_module_hold():
    failed, tried = doctest.testmod(steps_module)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("before", "text", "end"),
    [
        ("", "a", None),
        ("", "a\n\nb", 3),
        ("", "\n\n", 2),
        ("", "\n", None),
        ("a\n", "\n", 1),
        ("a\n", "\n\nb", 1),
        ("a\n", "b\n\n", 3),
        ("a\n\n", "\nb", None),
        ("a", "\nb\n\n", 4),
        ("\n", "\n", 1),
    ],
)
def test_a_delimiter_is_found_even_across_a_seam(before, text, end):
    assert delimiter_end(before, text) == end


def test_a_step_ends_at_the_blank_line():
    assert made([10, 12, 14]) == Step("One.\n\n", (10, 12, 14), Ending.DELIMITER, False, "v")


def test_a_step_at_the_cap_is_not_complete():
    step = made([10, 11], "length")
    assert step.ending is Ending.CAP
    assert not step.complete


def test_a_delimiter_that_fills_the_cap_ends_the_step():
    assert made([10, 14], "length").ending is Ending.DELIMITER


def test_a_token_that_overshoots_the_delimiter_stays_whole():
    step = made([10, 17])
    assert (step.text, step.ids, step.ending) == ("One\n\nThen", (10, 17), Ending.DELIMITER)


def test_tokens_after_the_delimiter_are_dropped():
    assert made([10, 14, 11, 12]).ids == (10, 14)
    assert made([10, 13, 13, 11], "length") == Step(
        "One\n\n", (10, 13, 13), Ending.DELIMITER, False, "v"
    )


def test_a_delimiter_astride_the_seam_ends_the_step_there():
    step = made([13, 10, 11], "length", before="A cut step\n")
    assert (step.text, step.ending) == ("\n", Ending.DELIMITER)


def test_the_end_of_sequence_belongs_to_the_ids_and_not_to_the_text():
    step = made([10, 12, EOS])
    assert (step.text, step.ids, step.ending) == ("One.", (10, 12, EOS), Ending.END)
    assert step.final


def test_what_was_written_after_the_end_of_sequence_is_dropped():
    assert made([10, EOS, 11]).ids == (10, EOS)


def test_a_delimiter_before_the_end_of_sequence_ends_the_step_first():
    step = made([10, 14, 11, EOS])
    assert (step.text, step.ending) == ("One\n\n", Ending.DELIMITER)


def test_a_step_may_be_nothing_but_the_end():
    assert made([EOS]) == Step("", (EOS,), Ending.END, False, "v")


def test_an_end_of_sequence_that_fills_the_cap_is_an_end():
    assert made([10, EOS], "length").ending is Ending.END


def test_the_closing_of_the_thoughts_is_seen():
    assert made([10, 18, 14]).closes_thinking
    assert not made([10, 14]).closes_thinking


@settings(max_examples=examples(200), deadline=None)
@given(
    st.text("a<\n\x01", max_size=6), st.text("a>\n\x01", max_size=6), st.sets(st.integers(1, 20))
)
def test_markers_are_seen_wherever_a_cap_cuts(front, back, cuts):
    """Also over three steps and more, some of which have no text, such as a special token alone."""
    known = Known(lambda ids: "".join(chr(i) for i in ids if i > EOS))
    ids = [ord(letter) for letter in f"{front}</think>{back}"]
    step, at, so_far, found = None, 0, "", []
    while at < len(ids):
        end = min((cut for cut in cuts if cut > at), default=len(ids))
        step = make_step(ids[at:end], "length", step, known, frozenset())
        closed, so_far, at = so_far.count("</think>"), so_far + step.text, at + len(step.ids)
        assert step.closes_thinking == (so_far.count("</think>") > closed)
        if step.complete or at == len(ids):
            found, so_far = [*found, so_far], ""
    assert found == split(known.decode(ids)) or (
        "".join(found) == known.decode(ids) and found[-1] == ""
    )


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (made([10, 14]), made([11, 14]), True),
        (made([10, EOS]), made([11, EOS]), True),
        (made([10, 12, EOS]), made([10, 12], "length"), False),
        (made([10, 14]), made([10, EOS]), False),
        (made([10, 14]), made([10], "length"), False),
        (made([10, 18, 14]), made([10, 14]), False),
        (made([10, 18, 14]), made([18, 14]), True),
    ],
)
def test_versions_end_alike_or_not(a, b, same):
    assert same_ending(a, b) is same
    assert same_ending(b, a) is same


def test_a_text_is_cut_into_steps():
    assert split("") == []
    assert split("a") == ["a"]
    assert split("a\n\n\n\nb\n") == ["a\n\n", "\n\n", "b\n"]


generations = st.lists(st.sampled_from(sorted(WORDS)), max_size=30)


@settings(max_examples=examples(200))
@given(generations, st.booleans())
def test_the_steps_of_a_generation_are_its_tokens(ids, ended):
    whole = (*ids, EOS) if ended else tuple(ids)
    parts = split_ids(whole, "stop" if ended else "length", KNOWN, frozenset({EOS}))
    assert tuple(i for step in parts for i in step.ids) == whole
    assert "".join(step.text for step in parts) == decode(ids)
    for step in parts[:-1]:
        assert step.ending is Ending.DELIMITER
        assert DELIMITER in step.text
        assert DELIMITER not in decode(step.ids[:-1]), (
            "it ends at the first token that completes the delimiter"
        )
    assert not parts or parts[-1].final is ended


def test_cutting_a_long_generation_decodes_each_token_a_few_times_only():
    decoded = 0

    def counting(ids):
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    ids = ([10, 11] * 40 + [14]) * 300
    assert len(split_ids(ids, "length", Known(counting), frozenset({EOS}))) == 300
    assert decoded < 20 * len(ids)


def test_a_long_step_is_cut_like_a_short_one():
    ids = [10, 11] * 2000 + [15] + [10] * 3000
    first, second = split_ids(ids, "length", KNOWN, frozenset({EOS}))
    assert (len(first.ids), first.ending) == (4001, Ending.DELIMITER)
    assert (len(second.ids), second.ending) == (3000, Ending.CAP)
