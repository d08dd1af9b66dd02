"""What a simulated target thinks of a drafted step: how likely each of its tokens is, and a rating.

It knows which drafts agree (``Model.agrees``). What it would write itself is likely; what means the same in other words
is less so at one word; anything else is unlikely from the word on that says what it means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lr_sglang.programs.rate import OPENING, QUESTION
from lr_sglang.simulated.model import TARGET, Place, Writer

# Log-probabilities of a token: a greedy target writes what is likelier than 1/2 (-0.69), and nothing else.
LIKELY, OTHER_WORDS, UNLIKELY = -0.05, -2.0, -9.0
_VERSION = 5  # the word of a head where versions part


def score(writer: Writer, prompt: Sequence[int], first: int) -> list[float]:
    """The log-probability of each token of a prompt from its ``first`` on."""
    found: list[float] = []
    for start, end in _pieces(prompt, first, writer.words.delimiter):
        # where the prompt would be if the step did not end: which step it is, and how far into it
        text = end - (prompt[end - 1] in (writer.words.delimiter, writer.words.eos))
        place = writer.place(prompt[:text]) if text > start else writer.place(prompt[:start])
        begun = place.offset - (text - start) if text > start else place.offset
        found += _step(writer, place, begun, prompt[start:end])
    return found


def _step(writer: Writer, place: Place, begun: int, ids: Sequence[int]) -> Iterator[float]:
    """Of tokens of one step that go on from its token ``begun``."""
    model, words = writer.model, writer.words
    own, said = (model.step(words, place.question, place.position, v) for v in (TARGET, place.version))
    agrees = model.agrees(place.question, place.position, place.version)
    for at, token in enumerate(ids, start=begun):
        known = 0 <= at < len(said) and said[at] == token
        if not known:
            yield UNLIKELY
        elif said == own or at < _VERSION:
            yield LIKELY
        elif agrees:
            yield OTHER_WORDS if at == _VERSION else LIKELY
        else:
            yield UNLIKELY


def _pieces(prompt: Sequence[int], first: int, delimiter: int) -> Iterator[tuple[int, int]]:
    """Where the steps begin and end that ``prompt[first:]`` has tokens of."""
    start = first
    for at in range(first, len(prompt)):
        if prompt[at] == delimiter or at == len(prompt) - 1:
            yield start, at + 1
            start = at + 1


def rating(writer: Writer, prompt: Sequence[int]) -> str | None:
    """The digit for the last step, if the prompt ends by asking for one: 7 to 9 for what agrees, else less."""
    tokenizer = writer.words.tokenizer
    if not OPENING.endswith(tokenizer.decode(prompt[-1:])):  # most prompts: the rest is not looked at
        return None
    if not tokenizer.decode(prompt[-len(OPENING) :]).endswith(OPENING):
        return None
    reach = len(tokenizer.encode(QUESTION)) + 3 * writer.model.longest
    heads = writer.words.find(tokenizer.decode(prompt[-reach:]))
    if not heads:
        return "0"
    head = heads[-1]
    drawn = writer.model.rated(head.question, head.position, head.version)
    agrees = writer.model.agrees(head.question, head.position, head.version)
    return str(7 + int(3 * drawn) if agrees else int(7 * drawn))
