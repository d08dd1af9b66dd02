"""How a model marks its thinking, which is where thinking ends: one table of families."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Markers:
    """The texts around a model's thinking.

    Attributes:
        parser: SGLang's name of a reasoning parser with these markers.
        opens: begins the thinking, in the prompt or in the answer.
        closes: ends it; what follows is the answer.
        always: whether ``closes`` also stands before a call of a tool.
    """

    parser: str
    opens: str
    closes: str
    always: bool = True

    def ended(self, prompt: str, written: str) -> bool:
        """Whether the thinking of an open turn has ended. A thought without words is none: so
        templates switch the thinking off.

        Args:
            prompt: what is before the turn's own text, from the end of the last turn.
            written: the turn's own text.
        """
        opened = self.opens + prompt.rpartition(self.opens)[2] if self.opens in prompt else ""
        thought, marker, said = (opened + written).rpartition(self.closes)
        words = thought.rpartition(self.opens)[2].strip()
        return bool(marker and words) and self.opens not in said


TAGS = Markers("deepseek-r1", "<think>", "</think>")
MARKER_FAMILIES = (
    # harmony: messages of several channels, of which ``final`` is the answer
    Markers(
        "gpt-oss",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        always=False,
    ),
    Markers("kimi", "◁think▷", "◁/think▷"),
    Markers("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    Markers("minimax-m3", "<mm:think>", "</mm:think>"),
    Markers("mistral", "[THINK]", "[/THINK]"),
    Markers("apertus2509", "<|inner_prefix|>", "<|inner_suffix|>"),
    Markers("k2_horizon", "<ifm|think>", "</ifm|think>"),
    Markers("cohere_command4", "<|START_THINKING|>", "<|END_THINKING|>"),
    TAGS,
)


def markers_of(known: str) -> Markers:
    """The markers of a model, by the text of its chat template and of its added tokens; ``<think>``
    if there is none of the others.
    """
    return next((one for one in MARKER_FAMILIES if one.opens in known), TAGS)


def text_after_thinking(text: str) -> str:
    """The text after the thinking, whose markers may be any; empty if the thinking never ends."""
    for one in MARKER_FAMILIES:
        text = text.rpartition(one.closes)[2]
        if one.opens in text:
            return ""
    return text
