"""A SGLang backend for one runtime of a deployment.

It differs from SGLang's own ``RuntimeEndpoint`` in what lookahead reasoning needs: prompts are token ids, rendered by
the model's own template; every request can be cancelled on the server; seeds and priorities are sent; and a failure
reaches whoever reads the state, as a named error and at once (SGLang's interpreter loses it, and can then hang).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from lr_sglang.call import Call
from lr_sglang.chat import Tokenizer, resolve
from lr_sglang.choices import decide
from lr_sglang.config import Lookahead
from lr_sglang.errors import BadReply, Cancelled, ConfigError, LookaheadError
from lr_sglang.generation import Generation, Written
from lr_sglang.memo import Memo
from lr_sglang.poison import Failed, poison
from lr_sglang.policy import Sharing
from lr_sglang.reuse import Entry, Ledger
from lr_sglang.sglang_api.interpreter import (
    BaseBackend,
    ChatTemplate,
    ChoicesDecision,
    ChoicesSamplingMethod,
    RuntimeEndpoint,
    SglSamplingParams,
    StreamExecutor,
)
from lr_sglang.tokens import TokenText
from lr_sglang.transport import Transport

# SGLang's interpreter writes roles into the state's text by a template; ours are rendered from ``messages_`` instead.
_NO_MARKERS = ChatTemplate(
    name="lr-sglang",
    default_system_prompt=None,
    role_prefix_and_suffix=dict.fromkeys(("system", "user", "assistant"), ("", "")),
)


# Requests that enter the runtime within this time may be prefilled in one batch, and then share nothing.
BATCH_SECONDS = 0.001
# What SGLang says has matched where a model's output is not a number; it puts an end of sequence there.
NO_NUMBER = "NaN happened"


class StepStop(str):
    """A stop string that stays in the text: marks a ``gen`` as a step (see ``dsl.step``)."""


class RuntimeBackend(BaseBackend):
    """Runs SGLang programs on one runtime.

    Args:
        role: ``target``, ``draft`` or ``judge``.
        transport: how to reach the runtime.
        tokenizer: of the runtime's model.
        context: the model's context length in tokens.
        timeout: seconds that a generation of up to 1,000 tokens may take; a longer one may take more in proportion.
        seeded: whether the runtime honours a seed.
        slots: requests that it runs at a time; None is not known.
        holds: tokens that its KV memory holds, likewise.
        token_layer: SGLang's name of its speculative algorithm, empty for none; None is not known.

    Attributes:
        simulated: whether it waits instead of computing, so that its figures say nothing of models.
        ends: ids that end a sequence, as far as they are known.
        sharing: the answers that use it now.
    """

    def __init__(
        self,
        role: str,
        transport: Transport,
        tokenizer: Tokenizer,
        *,
        context: int = 32768,
        timeout: float = 600.0,
        seeded: bool = False,
        slots: int | None = None,
        holds: int | None = None,
        token_layer: str | None = None,
    ) -> None:
        super().__init__()
        self.role, self.transport, self.tokenizer = role, transport, tokenizer
        self.context, self.timeout, self.seeded = context, timeout, seeded
        self.slots, self.holds, self.token_layer = slots, holds, token_layer
        self.simulated = False
        self.ends = tokenizer.ends
        self.chat_template = _NO_MARKERS
        self.roles: dict[str, RuntimeBackend] = {role: self}
        self.ledger, self.sharing = Ledger(), Sharing()

    def share(self, look: Lookahead) -> int | None:
        """Requests that an answer may have in flight here, with the answers that there are now; None is no limit."""
        return self.sharing.share(self.slots, self.holds, look)

    def get_model_name(self) -> str:
        return str(self.transport.get("/model_info").get("model_path", ""))

    def prompt_ids(self, s: StreamExecutor) -> tuple[int, ...]:
        """The ids of everything a state has said so far.

        Raises:
            ConfigError: some of it was said in roles and some outside of them; no template has a place for that.
        """
        messages, answer, known = s.messages_, "", self.tokenizer.vocabulary
        if not messages and s.cur_role is None:
            return resolve(s.text_, self.tokenizer)
        closed = slice(None if s.cur_role is None else s.cur_role_begin_pos)
        said = _said(str.__getitem__(s.text_, closed), tuple(m["content"] for m in messages))
        if said is None:
            raise ConfigError("text stands outside of any role", hint="put it into sgl.user or another role")
        messages = [{"role": m["role"], "content": text} for m, text in zip(messages, said, strict=True)]
        written: tuple[int, ...] | None = None
        if s.cur_role == "assistant":
            written = TokenText.wrap(s.text_).ids_from(s.cur_role_begin_pos, known)
            answer = s.text_[s.cur_role_begin_pos :] if written is None else ""
        elif s.cur_role is not None:
            messages = [*messages, {"role": s.cur_role, "content": s.text_[s.cur_role_begin_pos :]}]
        prompt = self.tokenizer.chat(messages, s.cur_role == "assistant")
        return prompt.ids + (resolve(answer, self.tokenizer) if written is None else written)

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        """Called by the interpreter in the state's thread. Never raises: see ``poison``."""
        call, s.call = getattr(s, "call", None) or Call(), None
        try:
            if s.images_:
                raise ConfigError("pictures are not supported", hint="ask a SGLang RuntimeEndpoint instead")
            RuntimeEndpoint._handle_dtype_to_regex(self, sampling_params)
            generation = self.ask(self.prompt_ids(s), sampling_params, call)
            text = self._text(generation, isinstance(sampling_params.stop, StepStop))
        except Exception as error:  # noqa: BLE001 - it must reach the one who waits, whatever it is
            call.end(self._failed(s, error))
            return "", {}
        call.end(generation)
        return text, generation.meta

    def _failed(self, s: StreamExecutor, error: Exception) -> LookaheadError:
        named = error if isinstance(error, LookaheadError) else BadReply(repr(error), role=self.role)
        named.role = named.role or self.role
        poison(s, named)
        return named

    def _text(self, generation: Generation, is_step: bool) -> str:
        ids = generation.ids[:-1] if generation.eos is not None else generation.ids
        text, decoded = generation.meta["text"], self.tokenizer.decode(ids)
        if is_step or text == decoded:  # nothing was trimmed, so the ids are the text's
            return TokenText.of(decoded, ids, self.tokenizer.vocabulary)
        return str(text)

    def generate_stream(
        self, s: StreamExecutor, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """One chunk: steps are short, and a program that streams sees each of them as it ends."""
        chunk = self.generate(s, sampling_params)
        if not isinstance(s, Failed):
            yield chunk

    def ask(self, ids: Sequence[int], params: SglSamplingParams, call: Call) -> Generation:
        """One /generate.

        Args:
            ids: prompt.
            params: SGLang's sampling parameters. A negative ``logprob_start_len`` counts from the end of the prompt:
                -5 asks for the log-probabilities of its last five tokens.
            call: how to cancel it; its ``end`` is left to the caller.

        Raises:
            LookaheadError: any of the transport's, or Cancelled.
        """
        wanted = params.to_srt_kwargs()
        wanted["no_stop_trim"] = isinstance(params.stop, StepStop)
        wanted = {key: value for key, value in wanted.items() if value not in (None, (), [])}
        payload: dict[str, Any] = {"input_ids": list(ids), "sampling_params": wanted}
        if call.seed is not None and self.seeded:
            wanted["sampling_seed"] = call.seed
        if call.priority is not None:
            payload["priority"] = call.priority
        most = None
        if params.return_logprob:
            most = params.logprob_start_len
            if most is not None and most < 0:  # SGLang gives none for the first token that it is asked about
                most = max(0, len(ids) + most - 1)
            payload |= {"return_logprob": True, "logprob_start_len": -1 if most is None else most}
        entry = self.ledger.add(tuple(ids), time.time(), most)
        # A long generation may take longer.
        patience = self.timeout * call.patience * max(1.0, params.max_new_tokens / 1000)
        reply = self.transport.generate(payload, call, patience)
        return self._read(reply, params, call, entry)

    def _read(self, reply: dict[str, Any], params: SglSamplingParams, call: Call, entry: Entry) -> Generation:
        try:
            meta = dict(reply["meta_info"])
            finish = dict(meta["finish_reason"])
            ids = tuple(map(int, reply["output_ids"]))
            meta["text"] = str(reply["text"])
            kind, matched = str(finish["type"]), finish.get("matched")
            logprobs = tuple(float(one[0]) for one in meta.get("input_token_logprobs") or () if one[0] is not None)
        except (KeyError, TypeError, ValueError) as error:
            raise BadReply(f"a reply without {error}", role=self.role) from error
        now = time.time()
        entry.cached = int(meta.get("cached_tokens") or 0)
        entry.entered, entry.prefilled, entry.finished = call.sent, now, now
        if began := float(meta.get("forward_entry_time") or 0):  # reported with --enable-metrics
            # a prefill is a batch of its own: whatever is scheduled after it finds its tokens in the cache
            entry.entered, entry.prefilled = began, began + BATCH_SECONDS
        entry.wrote(ids)
        made, eos = Written(ids, finish, meta["text"]), None
        if kind != "abort":
            ends = self._ends(params, matched)
            stops = () if isinstance(params.stop, StepStop) else _each(params.stop)
            made = made.until(params.max_new_tokens, ends, stops, self.tokenizer.decode)
            kind, eos = made.finish["type"], made.ids[-1] if made.ids and made.ids[-1] in ends else None
            meta |= {"finish_reason": made.finish, "text": made.text, "completion_tokens": len(made.ids)}
        prompt, cached = int(meta.get("prompt_tokens") or 0), meta.get("cached_tokens")
        dropped = len(ids) - len(made.ids)
        generation = Generation(made.ids, kind, eos, prompt, cached, meta, entry, logprobs, dropped)
        if kind == "abort":
            if call.cancelled:
                raise Cancelled("cancelled", role=self.role, generation=generation)
            raise BadReply(f"aborted by the runtime: {finish.get('message', '')}", role=self.role)
        if matched == NO_NUMBER:
            raise BadReply("the model computed no numbers (NaN)", role=self.role, hint="another --dtype may help")
        if isinstance(matched, int) and eos is None:
            raise BadReply("the end of sequence is not among the tokens", role=self.role)
        return generation

    def _ends(self, params: SglSamplingParams, matched: Any) -> frozenset[int]:
        """Ids that end what was asked for. One that the runtime reports, and that nobody asked for, is the model's."""
        if params.ignore_eos:  # the runtime looks at no id then, those of the request included
            return frozenset()
        asked = frozenset(params.stop_token_ids or ())
        if isinstance(matched, int) and matched not in asked:
            self.ends |= {matched}
        return self.ends | asked

    def select(
        self, s: StreamExecutor, choices: list[str], temperature: float, choices_method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """As ``generate``."""
        try:
            return decide(self, s, choices, choices_method)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(s, error)
            return ChoicesDecision("", {})

    def end_program(self, s: StreamExecutor) -> None:
        """Called by ``s.end()``, which SGLang calls again when ``s`` is deleted: once is enough.

        The second time it would ask the ended thread whether it lives, for which Python takes a global lock. The
        garbage collector may delete ``s`` while this very thread holds it, and then every thread of the process stops.
        """
        s.end = _nothing

    def shutdown(self) -> None:
        self.transport.close()

    def flush_cache(self) -> None:
        """Empties the runtime's radix cache: what was there cannot be shared any more."""
        self.transport.get("/flush_cache")
        self.ledger = Ledger()


def _each(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _nothing() -> None:
    pass


def _turns(text: str, contents: tuple[str, ...]) -> tuple[str, ...] | None:
    """What each turn of a conversation says, as it was given: SGLang cuts the white space before it.

    Args:
        text: of all turns.
        contents: of each, cut.

    Returns:
        None where ``text`` has more in it.
    """
    said, at = [], 0
    for number, content in enumerate(contents):
        begin = text.find(content, at)
        if begin < 0 or text[at:begin].strip():
            return None
        end = begin + len(content) if content or number + 1 < len(contents) else len(text)
        said.append(text[at:end])
        at = end
    return None if text[at:].strip() else tuple(said)


# A conversation is looked at before each of its branches. Characters of what is remembered: some tens of megabytes.
_said = Memo(_turns, lambda _, text, contents: 2 * len(text), 2**23)
