"""A text that knows its token ids, through everything that SGLang's interpreter does with a state's
text.
"""

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from lr_sglang.steps.token_text import Piece, TokenText

VOCABULARY = "v"


def written(text: str) -> TokenText:
    """What a model wrote, one token per character."""
    return TokenText.of(text, tuple(map(ord, text)), VOCABULARY)


texts = st.text("ab\n", max_size=4)
parts = st.lists(st.tuples(st.booleans(), texts), max_size=6)


def joined(chosen: list[tuple[bool, str]]) -> TokenText:
    whole = TokenText()
    for by_model, text in chosen:
        whole += written(text) if by_model else text
    return whole


def test_str_gives_the_same_object_back():
    text = written("ab")
    assert str(text) is text


def test_a_slice_at_a_seam_keeps_ids_and_one_inside_a_piece_drops_them():
    whole = "Q" + written("ab") + written("cd")
    assert whole[1:].pieces == (
        Piece("ab", (97, 98), VOCABULARY),
        Piece("cd", (99, 100), VOCABULARY),
    )
    assert whole[2:].pieces == (Piece("b", None, ""), Piece("cd", (99, 100), VOCABULARY))
    assert whole[:4].pieces[-1] == Piece("c", None, "")


def test_an_end_of_sequence_that_has_no_text_stays_with_its_step():
    step = TokenText.of("", (3,), VOCABULARY)
    assert (written("ab") + step).ids == (97, 98, 3)
    assert ("x" + written("ab") + step)[1:].ids == (97, 98, 3)


def test_copies_keep_their_ids():
    text = "Q" + written("ab")
    for twin in (copy.copy(text), copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert twin == text
        assert twin.pieces == text.pieces


@given(parts, texts)
def test_it_reads_as_the_plain_text_it_is_and_keeps_its_ids(chosen, before):
    """Also where plain text is put before it, as the interpreter does."""
    whole = before + joined(chosen)
    plain = before + "".join(text for _, text in chosen)
    assert whole == plain
    assert hash(whole) == hash(plain)
    assert "".join(p.text for p in whole.pieces) == plain
    assert whole.ids == tuple(ord(c) for by_model, text in chosen for c in text if by_model)


@given(
    parts,
    st.integers(-9, 9) | st.none(),
    st.integers(-9, 9) | st.none(),
    st.sampled_from([None, 1, -2, -1, 2]),
)
def test_every_slice_reads_as_the_slice_of_the_plain_text(chosen, start, stop, stride):
    cut = joined(chosen)[start:stop:stride]
    assert cut == "".join(text for _, text in chosen)[start:stop:stride]
    for piece in TokenText.wrap(cut).pieces:
        assert piece.ids is None or "".join(map(chr, piece.ids)) == piece.text
