"""What a step is: where it ends, how it ended, and which tokens belong to it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr_sglang.steps.step import (
    DELIMITER,
    TAGS,
    Ending,
    Step,
    delimiter_end,
    make_step,
    same_ending,
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
    thinking = TAGS

    def __init__(self, decode=decode):
        self.decode = decode

    def special(self, ids):
        return tuple(one for one in ids if one <= EOS)


KNOWN = Known()


def made(ids, finish="stop", before="", eos=(EOS,)):
    cut = Step(before, (), Ending.CAP, vocabulary="v") if before else None
    return make_step(ids, finish, cut, KNOWN, frozenset(eos))


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
        ("a cut step\n", "\nThe next", 1),
    ],
)
def test_a_delimiter_is_found_even_across_a_seam(before, text, end):
    assert delimiter_end(before, text) == end


@pytest.mark.parametrize(
    ("ids", "finish", "before", "text", "kept", "ending"),
    [
        ([10, 12, 14], "stop", "", "One.\n\n", 3, Ending.DELIMITER),
        ([10, 11], "length", "", "One two", 2, Ending.CAP),
        # a delimiter that fills the cap; one token too many; tokens after it
        ([10, 14], "length", "", "One\n\n", 2, Ending.DELIMITER),
        ([10, 17], "stop", "", "One\n\nThen", 2, Ending.DELIMITER),
        ([10, 14, 11, 12], "stop", "", "One\n\n", 2, Ending.DELIMITER),
        ([10, 13, 13, 11], "length", "", "One\n\n", 3, Ending.DELIMITER),
        # astride the seam to a step that was cut
        ([13, 10, 11], "length", "A cut step\n", "\n", 1, Ending.DELIMITER),
        # the end of sequence belongs to the ids and not to the text
        ([10, 12, EOS], "stop", "", "One.", 3, Ending.END),
        ([10, EOS, 11], "stop", "", "One", 2, Ending.END),
        ([10, EOS], "length", "", "One", 2, Ending.END),
        ([EOS], "stop", "", "", 1, Ending.END),
        ([10, 14, 11, EOS], "stop", "", "One\n\n", 2, Ending.DELIMITER),
    ],
)
def test_where_a_step_ends(ids, finish, before, text, kept, ending):
    step = made(ids, finish, before)
    assert step == Step(text, tuple(ids[:kept]), ending, False, "v")
    assert (step.complete, step.final) == (ending is not Ending.CAP, ending is Ending.END)


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
    assert found == re.findall(r".*?\n\n|.+", known.decode(ids), re.DOTALL) or (
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
