"""A scripted runtime with probabilities: a model of dice, whose logits follow from the text."""

import asyncio
import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from lr_sglang.errors import RuntimeDown, RuntimeTimeout
from lr_sglang.plugin import seeds
from lr_sglang.sglang_api.plugin_protocol import place_of
from tests.scripted import END, ScriptedTransport

LETTERS = [*map(ord, "abcdefghijklmno .,é\n"), END]


@lru_cache(maxsize=256)  # what is written is read soon
def normal(*key: int) -> np.ndarray:
    """A number for each letter, the same for the same key."""
    return np.random.default_rng(key).normal(size=len(LETTERS))


class Dice(ScriptedTransport):
    """A model with probabilities: its logits follow from the last tokens of the text.

    Args:
        model: another number is another model.
        noise: how far its logits are from those of the model.
        wrong: whether its log-probabilities are another model's.
    """

    def __init__(self, model: int, noise: float = 0.0, wrong: bool = False, tells: bool = True):
        super().__init__(lambda text, sampling: "")
        self.model, self.noise, self.wrong, self.tells = model, noise, wrong, tells
        self.fails_after = self.hangs_after = math.inf

    def logits(self, ids: Any, wrong: bool = False) -> np.ndarray:
        made = normal(self.model + wrong, *ids[-5:]) * 2.5
        made[LETTERS.index(ord("\n"))] += 3.0 * (ids[-1] == ord("\n"))
        made[LETTERS.index(END)] -= 3.0
        return made + self.noise * normal(len(ids), 7) if self.noise else made

    def probabilities(self, ids: Any, temperature: float) -> torch.Tensor:
        made = torch.full((1, 256), -math.inf)
        made[0, LETTERS] = torch.from_numpy(self.logits(ids)).float()
        return torch.softmax(made / (temperature or 1.0), -1)

    async def generate(self, payload: Any, request: Any, timeout: float) -> dict[str, Any]:
        stopped = asyncio.Event()
        request.sending(lambda _: stopped.set())
        try:
            return await self._generate(payload, timeout, stopped)
        finally:
            request.end()

    async def wait(self, payload: Any, tokens: int, stopped: asyncio.Event) -> bool:
        """Takes the time of a request that writes so many tokens; whether it was aborted."""
        return False

    async def _generate(
        self, payload: Any, timeout: float, stopped: asyncio.Event
    ) -> dict[str, Any]:
        if len(self.requests) >= self.fails_after:
            raise RuntimeDown("gone", role="draft")
        if len(self.requests) >= self.hangs_after:
            await asyncio.sleep(timeout)
            raise RuntimeTimeout("no answer", role="draft")
        self.requests.append(payload)
        prompt, sampling = list(payload["input_ids"]), payload["sampling_params"]
        start = len(prompt) - 1 - place_of(sampling.get("custom_params"))
        key = seeds.keys(torch.tensor([sampling.get("sampling_seed", 0)]), torch.tensor([start]))
        stop = sampling.get("stop") or ()
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        off = {"top_k": -1, "top_p": 1.0, "min_p": 0.0}
        filters = {
            f"{name}s": torch.tensor([sampling[name]])
            for name, value in off.items()
            if sampling.get(name, value) != value
        }
        ids: list[int] = []
        while len(ids) < sampling["max_new_tokens"] and END not in ids:
            probs = self.probabilities(prompt + ids, sampling["temperature"])
            place = torch.tensor([len(prompt) + len(ids) - 1])
            token = (
                probs.argmax(-1)
                if sampling["temperature"] == 0
                else seeds.draw(probs, key, place, **filters)
            )
            ids.append(int(token))
            if any(one in "".join(map(chr, ids)) for one in stops):
                break
        said = [one for one in stops if one in "".join(map(chr, ids))]
        matched = said[0] if said else END
        finish = {"type": "stop", "matched": matched} if said or END in ids else {"type": "length"}
        meta = {"finish_reason": finish, "prompt_tokens": len(prompt)}
        if payload.get("return_logprob") and self.tells:
            meta["output_top_logprobs"] = [
                self._row(prompt + ids[:at], payload["top_logprobs_num"]) for at in range(len(ids))
            ]
        if payload.get("return_logprob") and self.tells and payload["logprob_start_len"] >= 0:
            first = payload["logprob_start_len"]
            rows = [
                self._row(prompt[:at], payload["top_logprobs_num"])
                for at in range(first + 1, len(prompt))
            ]
            meta["input_top_logprobs"] = [None, *rows]
            meta["input_token_logprobs"] = [
                [None, prompt[first], None],
                *([-1.0, 5, None] for _ in rows),
            ]
        if await self.wait(payload, len(ids), stopped):
            meta["finish_reason"] = {"type": "abort"}
        shown = "".join(chr(one) for one in ids if one != END)
        return {"text": shown, "output_ids": ids, "meta_info": meta}

    def _row(self, ids: Any, most: int) -> list[Any]:
        logs = torch.log_softmax(torch.from_numpy(self.logits(ids, self.wrong)).float(), -1)
        best, at = logs.topk(min(most, len(LETTERS)))
        return [[float(one), LETTERS[int(n)], None] for one, n in zip(best, at, strict=True)]
