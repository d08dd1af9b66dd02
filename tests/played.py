"""Runtimes that generate token by token as SGLang's do, over real tokenizers: ends, caps, stop
strings and texts.

What they write depends on every id of the prompt, so that one wrong id changes all that comes after
it.
"""

import random

from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.tokenizer import ModelTokenizer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.steps.step import completed, make_step


class Model:
    """The next id, by all ids before it. With ``noise`` some are another model's."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        pool: list[int],
        seed: int,
        ends: float = 0.05,
        noise: float = 0.0,
    ):
        self.known, self.pool, self.seed, self.ends, self.noise = tokenizer, pool, seed, ends, noise
        self.end = min(tokenizer.ends)

    def next(self, ids) -> int:
        own, other = random.Random(repr((self.seed, ids))), random.Random(repr((ids, self.seed)))
        drawn = other if other.random() < self.noise else own
        return self.end if drawn.random() < self.ends else drawn.choice(self.pool)

    def whole(self, prompt, most: int) -> tuple[int, ...]:
        """All that it writes after a prompt."""
        ids = ()
        while len(ids) < most and self.end not in ids:
            ids += (self.next((*prompt, *ids)),)
        return ids


class Played:
    """One runtime.

    Args:
        length_first: the order of SGLang 0.5.16; that of 0.5.23 is the other.
        passes: tokens of one pass of the target.
        room: tokens of prompt and answer that it holds; it cuts what is asked for to that, without
            a word.
    """

    def __init__(self, model: Model, length_first: bool = True, passes: int = 1, room: int = 10**6):
        self.model, self.known, self.room = model, model.known, room
        self.length_first, self.passes = length_first, passes
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, payload, request, timeout):
        request.sending(lambda _: None)
        prompt, sampling = tuple(payload["input_ids"]), payload["sampling_params"]
        self.prompts.append(prompt)
        ids, finish = self._write(
            prompt, sampling, max(0, min(sampling["max_new_tokens"], self.room - len(prompt)))
        )
        shown, before = ids[:-1] if isinstance(finish.get("matched"), int) else ids, prompt[-5:]
        text = self.known.decode((*before, *shown)).removeprefix(self.known.decode(before))
        if not sampling.get("no_stop_trim"):
            text = (
                text.partition(finish["matched"])[0]
                if isinstance(finish.get("matched"), str)
                else text
            )
        request.end()
        meta = {"finish_reason": finish, "prompt_tokens": len(prompt)}
        return {"text": text, "output_ids": list(ids), "meta_info": meta}

    def _write(self, prompt, sampling, most):
        """As ``Req.update_finish_state``."""
        stop, ids, length = sampling.get("stop") or (), (), {"type": "length", "length": most}
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        while most:
            new = ()
            for _ in range(self.passes):
                new += (self.model.next((*prompt, *ids, *new)),)
            first, ids = len(ids), ids + new
            if self.length_first and len(ids) >= most:
                break
            for at in range(first, len(ids)):
                found = [
                    stop for stop in stops if stop in self.known._fast.decode(ids[: at + 1], False)
                ]
                if found or ids[at] in self.known.ends:
                    ended = at + 1, {"type": "stop", "matched": found[0] if found else ids[at]}
                    return (ids[: ended[0]], ended[1]) if ended[0] <= most else (ids[:most], length)
            if len(ids) >= most:
                break
        return ids[:most], length

    async def get(self, path, timeout=0.0):
        return {"model_path": "played"}

    async def close(self):
        pass


def played(**runtimes: Played) -> RuntimeBackend:
    """Backends by role; returns the target's."""
    roles = {
        role: RuntimeBackend(role, one, one.known, ServerFacts(seeded=True, token_layer=""))
        for role, one in runtimes.items()
    }
    for backend in roles.values():
        backend.roles, backend.readable = roles, False
    return roles["target"]


def steps_of(ids, cuts, known):
    """The steps of an answer that is cut there."""
    steps, at = [], 0
    for end in (*cuts, len(ids)):
        while at < end:  # what is after a delimiter is another step
            steps.append(
                make_step(ids[at:end], "length", steps[-1] if steps else None, known, known.ends)
            )
            at += len(steps[-1].ids)
    return [*steps[:-1], *(completed(last, known) for last in steps[-1:])]
