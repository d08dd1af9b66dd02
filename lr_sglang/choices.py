"""``select``: which of some texts a runtime finds most likely next, by SGLang's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr_sglang.call import Call
from lr_sglang.errors import BadReply, ConfigError
from lr_sglang.sglang_api.interpreter import ChoicesDecision, ChoicesSamplingMethod, SglSamplingParams, StreamExecutor

if TYPE_CHECKING:
    from lr_sglang.backend import RuntimeBackend

Scored = list[tuple[float, int, None]]


def decide(
    backend: RuntimeBackend, s: StreamExecutor, choices: list[str], method: ChoicesSamplingMethod
) -> ChoicesDecision:
    """Scores every choice after the state's text; only the choices are computed, the prefix is shared.

    The state's ``call``, if it has one, is what each of the requests can be cancelled by.

    Raises:
        ConfigError: a choice is empty. LookaheadError: as ``RuntimeBackend.ask``.
    """
    if not all(choices):
        raise ConfigError("select: a choice is empty")
    call = getattr(s, "call", None) or Call()
    s.call = None
    prompt = backend.prompt_ids(s)
    options = [backend.tokenizer.encode(choice) for choice in choices]
    scored = [_score(backend, prompt, option, call) for option in options]
    alone = None
    if method.requires_unconditional_logprobs:
        # Of its first token nothing can be said without a text before it: SGLang puts None there.
        alone = [[(None, option[0], None), *_score(backend, option[:1], option[1:], call)] for option in options]
    return method(
        choices=choices,
        normalized_prompt_logprobs=[sum(one[0] for one in tokens) / len(tokens) for tokens in scored],
        input_token_logprobs=scored,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=alone,
    )


def _score(backend: RuntimeBackend, before: tuple[int, ...], option: tuple[int, ...], call: Call) -> Scored:
    if not option:
        return []
    wanted = SglSamplingParams(max_new_tokens=0, temperature=0.0, return_logprob=True, logprob_start_len=-len(option))
    found = backend.ask((*before, *option), wanted, call).logprobs[-len(option) :]
    if len(found) != len(option):
        raise BadReply(f"log-probabilities of {len(found)} tokens of {len(option)}", role=backend.role)
    return [(logprob, token, None) for logprob, token in zip(found, option, strict=True)]
