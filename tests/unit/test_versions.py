"""``Version``: what the target says of guessed tokens becomes its text, and the draft's version."""

import pytest

from lr_sglang.steps.step import make_step
from lr_sglang.steps.tree import Taken, Version
from lr_sglang.testing import CharTokenizer

LETTERS = CharTokenizer()


def ids(text):
    return LETTERS.encode(text)


@pytest.mark.parametrize(
    ("guess", "draws", "decoded", "taken", "known"),
    [
        ("abc", [*ids("abcd")], False, Taken(3, True, 4), "abcd"),
        ("abc", [*ids("abc")], False, Taken(3, True, 3), "abc"),
        ("abc", [*ids("axcd")], False, Taken(1, False, 2), "ax"),
        ("abc", [*ids("axyz")], True, Taken(1, False, 4), "axyz"),
        ("abc", [ids("a")[0], None, *ids("cd")], False, Taken(1, False, 1), "a"),
        ("abc", [], False, Taken(0, False, 0), ""),
        ("", [*ids("x")], False, Taken(0, True, 1), "x"),
    ],
    ids=[
        "whole",
        "no token after it",
        "differs",
        "decoded",
        "unknown",
        "failed",
        "nothing guessed",
    ],
)
def test_known_are_the_tokens_that_agree_and_the_targets_own(guess, draws, decoded, taken, known):
    version = Version(guess=ids(guess))
    assert version.take(draws, decoded=decoded) == taken
    assert version.known == ids(known) and version.was_read
    assert version.guess is None, "what was read is no guess any more"


def grown(*passes):
    """A version that runs on, after some guesses and what the target has decoded there."""
    version = Version(runs_on=True)
    for guess, own in passes:
        version.guess = ids(guess)
        version.take(ids(own), decoded=True)
    return version


@pytest.mark.parametrize(
    ("passes", "found"),
    [
        ([("ab\n\nc", "ab\n\nc")], "ab\n\n"),
        ([("ax\n\n", "ab"), ("\n\n", "\n\n")], "ax\n\n"),
        ([("ax", "ab"), ("y", "\n\n")], "ax"),
        ([("", "a"), ("b\n\n", "b\n\n")], None),
        ([("", "a"), ("x\n\n", "b\n\n")], None),
    ],
    ids=["all of it", "parts", "the first place counts", "begins late", "begins late and parts"],
)
def test_the_drafts_version_is_what_it_wrote_from_the_steps_beginning(passes, found):
    version = grown(*passes)
    step = make_step(version.known, "length", None, LETTERS, LETTERS.ends)
    drafted = version.draft_version(step, None, LETTERS, LETTERS.ends)
    assert (drafted and drafted.text) == found
    assert (drafted is step) == (found == step.text)


def test_where_the_draft_parts_stays_with_the_step_in_which_it_does():
    version = grown(("a\n\nx\n\n", "a\n\nbc\n\n"))
    first = make_step(version.known, "length", None, LETTERS, LETTERS.ends)
    assert version.draft_version(first, None, LETTERS, LETTERS.ends) is first
    rest = version.after(len(first.ids))
    assert rest.known == ids("bc\n\n") and rest.runs_on
    second = make_step(rest.known, "length", first, LETTERS, LETTERS.ends)
    assert rest.draft_version(second, first, LETTERS, LETTERS.ends).text == "x\n\n"
