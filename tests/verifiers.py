"""Verifiers by name, over scripted runtimes."""

from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import Setup, make_verifier
from lr_sglang.verifiers.cascade import Cascade
from lr_sglang.verifiers.embedding import Embedding
from lr_sglang.verifiers.verifier_registry import CascadeStage


def made(name: str, roles):
    """``sure`` is a cascade with thresholds: its first stage decides the clear cases."""
    if name == "embedding":
        return Embedding(Lengths(), 0.9)
    if name == "sure":
        setup = Setup(roles, "paper")
        return Cascade(
            [(make_verifier("score:5", setup), CascadeStage("score", 3, 7))],
            make_verifier("judge", setup),
        )
    return make_verifier(name, Setup(roles, "paper"))


class Lengths:
    """An encoder: texts of about the same length are alike. Some batches fail."""

    def encode(self, sentences):
        if any(text.startswith("o") for text in sentences):
            raise ValueError("no vector for that")
        return [(1.0, len(text)) for text in sentences]


VERIFIERS = (
    *("exact", "random:0.5", "judge", "embedding", "score:5", "likelihood:min:-1"),
    *("cascade:score,likelihood,judge", "cascade:likelihood:min:-1,exact", "sure"),
)


class Yes:
    """A verifier that agrees with everything it is asked."""

    name = "yes"

    def __init__(self):
        self.asked = []

    def verify(self, inquiry):
        self.asked.append(inquiry.pair)
        return Verdict(True, self.name)


class Same:
    """Accepts versions with the same text, as a judge may: not by tokens, so the answer need not be the
    target's own draw.
    """

    name = "same"

    def verify(self, inquiry):
        return Verdict(inquiry.pair.target.text == inquiry.pair.draft.text, self.name)
