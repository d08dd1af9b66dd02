"""``select``: chooses the text that is most likely on a runtime, by SGLang's own rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lr_sglang.engine.generation import Generation
from lr_sglang.errors import BadReply
from lr_sglang.frontend.sampling import SamplingParams
from lr_sglang.sglang_api.interpreter import ChoicesDecision, ChoicesSamplingMethod

Ids = tuple[int, ...]
Ask = Callable[[Ids, SamplingParams], Awaitable[Generation]]
Scored = list[tuple[float, int, None]]


async def decide(
    choices: list[str], encoded: Sequence[Ids], prompt: Ids, method: ChoicesSamplingMethod, ask: Ask
) -> ChoicesDecision:
    """Scores every choice after a prompt; the choices share the prompt's KV cache.

    Args:
        encoded: the ids of each choice.
        ask: sends one request to the runtime.
    """
    scored = [await _score(ask, prompt, ids) for ids in encoded]
    alone = None
    if method.requires_unconditional_logprobs:
        # The first token of a prompt has no probability: SGLang reports None.
        alone = [[(None, ids[0], None), *await _score(ask, ids[:1], ids[1:])] for ids in encoded]
    return method(
        choices=choices,
        normalized_prompt_logprobs=[
            sum(one[0] for one in tokens) / len(tokens) for tokens in scored
        ],
        input_token_logprobs=scored,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=alone,
    )


async def _score(ask: Ask, before: Ids, option: Ids) -> Scored:
    if not option:
        return []
    wanted = SamplingParams(
        max_new_tokens=0, temperature=0.0, return_logprob=True, logprob_start_len=-len(option)
    )
    found = (await ask((*before, *option), wanted)).logprobs[-len(option) :]
    if len(found) != len(option):
        raise BadReply(f"log-probabilities of {len(found)} tokens of {len(option)}")
    return [(logprob, token, None) for logprob, token in zip(found, option, strict=True)]
