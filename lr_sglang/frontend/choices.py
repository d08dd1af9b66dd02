"""``select``: which of some texts a runtime finds most likely next, by SGLang's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr_sglang.engine.request import Request
from lr_sglang.errors import BadReply, ConfigError
from lr_sglang.frontend.executor import Executor
from lr_sglang.frontend.values import SamplingParams
from lr_sglang.sglang_api.interpreter import ChoicesDecision, ChoicesSamplingMethod

if TYPE_CHECKING:
    from lr_sglang.frontend.backend import RuntimeBackend

Scored = list[tuple[float, int, None]]


async def decide(
    backend: RuntimeBackend, s: Executor, choices: list[str], method: ChoicesSamplingMethod
) -> ChoicesDecision:
    """Scores every choice after the state's text; only the choices are computed, the prefix is shared.

    The state's ``request``, if it has one, cancels what is asked.

    Raises:
        ConfigError: a choice is empty. LookaheadError: as ``RuntimeBackend.ask``.
    """
    if not all(choices):
        raise ConfigError("select: a choice is empty")
    request, s.request = s.request or Request(), None
    prompt = backend.prompt_ids(s)
    options = [backend.tokenizer.encode(choice, True) for choice in choices]
    scored = [await _score(backend, prompt, option, request) for option in options]
    alone = None
    if method.requires_unconditional_logprobs:
        # Of its first token nothing can be said without a text before it: SGLang puts None there.
        alone = []
        for option in options:
            rest = await _score(backend, option[:1], option[1:], request)
            alone.append([(None, option[0], None), *rest])
    return method(
        choices=choices,
        normalized_prompt_logprobs=[sum(one[0] for one in tokens) / len(tokens) for tokens in scored],
        input_token_logprobs=scored,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=alone,
    )


async def _score(backend: RuntimeBackend, before: tuple[int, ...], option: tuple[int, ...], whole: Request) -> Scored:
    if not option:
        return []
    request = whole.part()
    wanted = SamplingParams(max_new_tokens=0, temperature=0.0, return_logprob=True, logprob_start_len=-len(option))
    found = (await backend.ask((*before, *option), wanted, request)).logprobs[-len(option) :]
    if len(found) != len(option):
        raise BadReply(f"log-probabilities of {len(found)} tokens of {len(option)}", role=backend.role)
    return [(logprob, token, None) for logprob, token in zip(found, option, strict=True)]
