"""A SGLang backend for one runtime of a deployment.

Unlike SGLang's own ``RuntimeEndpoint`` it sends seeds, and prompts as token ids that the model's
template rendered. It can abort every request on the server, and a failure is raised at once, as a
named error, when the state is read.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from lr_sglang.config import Limits
from lr_sglang.engine.client import status_error
from lr_sglang.engine.doubts import Doubts, JudgeChecks
from lr_sglang.engine.loop import background, call
from lr_sglang.engine.prefix_reuse import RequestLog
from lr_sglang.engine.server_facts import UNKNOWN, ServerFacts
from lr_sglang.engine.slots import LineSender, Slots
from lr_sglang.engine.tokenizer import Tokenizer, render_turns, resolve
from lr_sglang.engine.transport import FLUSH_SECONDS, INFO_SECONDS, Transport
from lr_sglang.errors import BadReply, Cancelled, ConfigError, LookaheadError, PromptTooLong
from lr_sglang.frontend import changes
from lr_sglang.frontend.executor import Executor, SamplingParams, checked_stops
from lr_sglang.sglang_api.interpreter import (
    BaseBackend,
    ChatTemplate,
    ChoicesDecision,
    ChoicesSamplingMethod,
    RuntimeEndpoint,
)
from lr_sglang.sglang_api.plugin_protocol import with_seed
from lr_sglang.steps.branch import Generation, Request, until
from lr_sglang.steps.step import StepStop
from lr_sglang.steps.token_text import TokenText

changes.install_changes()

# SGLang's interpreter adds role markers to the state's text; we add none, and render prompts from
# ``messages_``.
_NO_MARKERS = ChatTemplate(
    name="lr-sglang",
    default_system_prompt=None,
    role_prefix_and_suffix=dict.fromkeys(("system", "user", "assistant"), ("", "")),
)
CLOSE_SECONDS = 2.0  # that a caller waits for the connections to close; they close all the same
NO_NUMBER = "NaN happened"  # SGLang's ``matched`` where a model's output is NaN


class _Naming:
    """Sets the role of errors; turns those that are no ``LookaheadError`` into ``BadReply``."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, LookaheadError):
            error.role = error.role or self._role
        elif isinstance(error, Exception):
            raise BadReply(f"a generation failed: {error!r}", role=self._role) from error


class RuntimeBackend(BaseBackend):
    """Runs SGLang programs on one runtime.

    Args:
        role: ``target``, ``draft`` or ``judge``.
        transport: how to reach the runtime.
        tokenizer: of the runtime's model.
        facts: what its servers do.
        timeout: seconds for a generation of up to 1,000 tokens; proportionally more for a longer
            one.
        slots: those that its requests wait for, shared with other roles of its servers.

    Attributes:
        slots: as many as the servers have room for, or fewer if other processes use some of
            them.
        checks: of a judge: its verdicts on pairs of steps that differ.
        readable: whether its server's log-probabilities of a prompt give what it would have drawn;
            None until that was tried.
        lines: delivers what a draft writes ahead of the server's requests.
        doubts: what its requests show of it: little reuse, aborts that it does not take.
        ends: the known ids that end a sequence.
    """

    def __init__(
        self,
        role: str,
        transport: Transport,
        tokenizer: Tokenizer,
        facts: ServerFacts = UNKNOWN,
        *,
        timeout: float = 600.0,
        slots: Slots | None = None,
    ) -> None:
        super().__init__()
        self.role = role
        self.transport = transport
        self.tokenizer = tokenizer
        self.facts = facts
        self.timeout = timeout
        self.slots = slots or Slots(facts.room)
        self.doubts = Doubts(role, little_reuse=facts.little_reuse, found=dict(facts.doubts))
        self.readable: bool | None = None
        self.lines = LineSender(lambda deliveries: transport.deliver(deliveries))
        self.checks = JudgeChecks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ends = tokenizer.ends | facts.ends
        self.chat_template = _NO_MARKERS
        self.roles: dict[str, RuntimeBackend] = {role: self}
        self.request_log = RequestLog()
        self.naming = _Naming(role)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it is bound to, or else the process's own. Reading this does not bind
        it.
        """
        return self._loop or background()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Binds its requests to this loop, unless it is bound; otherwise the loop of its first
        request binds it.
        """
        if self._loop is None or self._loop.is_closed():
            self._loop = loop

    def prompt_ids(self, s: Executor) -> tuple[int, ...]:
        """The token ids of a state's text.

        Raises:
            ConfigError: some of the text is in roles and some outside of them, which no chat
                template can render.
        """
        if not s.messages_ and s.cur_role is None:
            return resolve(s.text_, self.tokenizer, begins=True)
        if s.cur_role != "assistant":
            return render_turns(s, self.tokenizer).ids
        opened = self._opened_ids(s)
        written = TokenText.wrap(s.text_).ids_from(s.cur_role_begin_pos, self.tokenizer.vocabulary)
        return opened + (
            resolve(s.text_[s.cur_role_begin_pos :], self.tokenizer) if written is None else written
        )

    def _opened_ids(self, s: Executor) -> tuple[int, ...]:
        """The rendered turns before the assistant's open one, and its beginning; kept in
        ``s.opened`` for the next generation.
        """
        where = len(s.messages_), s.cur_role_begin_pos
        # otherwise cached, also for forks
        if self.tokenizer not in s.opened or s.opened[self.tokenizer][0] != where:
            rendered = s.opening(self) if s.opening else render_turns(s, self.tokenizer)
            s.opened = {**s.opened, self.tokenizer: (where, rendered.ids)}
        ids: tuple[int, ...] = s.opened[self.tokenizer][1]
        return ids

    def opened_thought(self, s: Executor) -> str:
        """The marker with which the chat template has opened the thinking in the assistant's open
        turn; empty if it has opened none.
        """
        marker = self.tokenizer.thinking.opens
        begun = self.tokenizer.decode(self._opened_ids(s)) if s.cur_role == "assistant" else ""
        return marker if begun.rstrip().endswith(marker) else ""

    def thought_ended(self, s: Executor) -> bool:
        """Whether what stands in the assistant's open turn has ended its thinking, whoever wrote
        it: the model, a program or a client.
        """
        if s.cur_role == "assistant":
            prompt = self._opened_ids(s)
            prefix = s.opening.prefix if s.opening else ""
            written = prefix + s.text_[s.cur_role_begin_pos :]
        else:
            prompt = self.prompt_ids(s)
            prefix = ""
            written = ""
        turn = next((n for n, one in enumerate(reversed(prompt)) if one in self.ends), len(prompt))
        text = self.tokenizer.spell(prompt[len(prompt) - turn :]).removesuffix(prefix)
        return self.tokenizer.thinking.ended(text, written)

    def budget(self, s: Executor, limits: Limits) -> tuple[int, int]:
        """The number of tokens of a state's prompt, and the maximum number of an answer.

        Raises:
            PromptTooLong: no token is left for an answer. BadReply: the model's chat template
                fails.
        """
        with self.naming:
            prompt = len(self.prompt_ids(s))
        context = self.facts.context
        if (left := limits.budget(prompt, context)) < 1:
            raise PromptTooLong(
                f"this model's maximum context length is {context} tokens; the prompt has "
                f"{prompt} tokens and leaves no room for an answer",
                role=self.role,
                hint="limits.max_total_tokens may be lower",
            )
        return prompt, left

    async def agenerate(self, s: Executor, params: SamplingParams) -> tuple[str, dict[str, Any]]:
        """Generates text after a state; the text of a step carries its token ids."""
        request = s.request or Request()
        s.request = None
        try:
            with self.naming:
                if s.images_:
                    raise ConfigError(
                        "pictures are not supported", hint="ask a SGLang RuntimeEndpoint instead"
                    )
                if params.dtype is not None:
                    RuntimeEndpoint._handle_dtype_to_regex(self, params)
                request.result = generation = await self.ask(self.prompt_ids(s), params, request)
                return self._text(generation, isinstance(params.stop, StepStop)), generation.meta
        except LookaheadError as error:
            request.result = error
            raise

    def _text(self, generation: Generation, is_step: bool) -> str:
        ids = generation.ids[:-1] if generation.eos is not None else generation.ids
        text = generation.meta["text"]
        decoded = self.tokenizer.decode(ids)
        if (
            not is_step
            and text != decoded
            and isinstance(generation.meta["finish_reason"].get("matched"), str)
        ):
            return str(text)  # SGLang removed the stop string; other differences are leading spaces
        return TokenText.of(decoded if is_step else text, ids, self.tokenizer.vocabulary)

    async def ask(
        self, ids: tuple[int, ...], params: SamplingParams, request: Request
    ) -> Generation:
        """Sends one /generate when the runtime has a slot for it.

        Args:
            ids: prompt.
            params: SGLang's sampling parameters. A negative ``logprob_start_len`` counts from the
                end of the prompt: -5 asks for the log-probabilities of its last five tokens.
            request: cancels it.

        Raises:
            LookaheadError: one of the transport's errors, or Cancelled.
        """
        payload: dict[str, Any] = {"input_ids": ids, "sampling_params": params.sent}
        if request.seed is not None and self.facts.seeded:
            payload["sampling_params"] = with_seed(params.sent, request.seed, request.place)
        if request.on_tokens is not None and self.facts.streams:
            payload["stream"] = True
            payload["sampling_params"] = {
                **payload["sampling_params"],
                "stream_interval": request.stream_interval,
            }
            request.increments = self.facts.increments
        cacheable = None
        if params.return_logprob:
            cacheable = params.logprob_start_len
            if cacheable is not None and cacheable < 0:  # SGLang returns none for the first token
                cacheable = max(0, len(ids) + cacheable - 1)
            payload |= {
                "return_logprob": True,
                "logprob_start_len": -1 if cacheable is None else cacheable,
            }
            if params.top_logprobs_num:
                payload["top_logprobs_num"] = params.top_logprobs_num
            if params.return_text_in_logprobs:
                payload["return_text_in_logprobs"] = True
        # The timeout is proportional to the number of tokens above 1,000.
        patience = self.timeout * request.patience * max(1.0, params.max_new_tokens / 1000)
        if self._loop is None:
            self.bind(asyncio.get_running_loop())
        await self.slots.enter(request, request.order)
        try:
            reply = await self.transport.generate(payload, request, patience)
        finally:
            self.slots.leave()
        return self._read(reply, params, request, ids, cacheable)

    def _read(
        self,
        reply: dict[str, Any],
        params: SamplingParams,
        request: Request,
        prompt: tuple[int, ...],
        cacheable: int | None,
    ) -> Generation:
        try:
            meta = dict(reply["meta_info"])
            finish = dict(meta["finish_reason"])
            ids = tuple(map(int, reply["output_ids"]))
            text = meta["text"] = str(reply["text"])
            kind = str(finish["type"])
            matched = finish.get("matched")
            logprobs = tuple(
                float(one[0])
                for one in meta.get("input_token_logprobs") or ()
                if one[0] is not None
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadReply(f"a reply without {error}", role=self.role) from error
        shareable = self.request_log.add(prompt, ids, meta, request.sent, time.time(), cacheable)
        kept = ids
        eos = None
        if kind != "abort":
            ends = self._ends(params, matched)
            kept, finish, text = until(
                ids,
                finish,
                text,
                most=params.max_new_tokens,
                ends=ends,
                stops=() if isinstance(params.stop, StepStop) else checked_stops(params.stop),
                decode=self.tokenizer.decode,
            )
            kind = finish["type"]
            eos = kept[-1] if kept and kept[-1] in ends else None
            meta |= {"finish_reason": finish, "text": text, "completion_tokens": len(kept)}
        read = int(meta.get("prompt_tokens") or 0)
        cached = meta.get("cached_tokens")
        dropped = len(ids) - len(kept)
        generation = Generation(kept, kind, eos, read, cached, meta, shareable, logprobs, dropped)
        if kind == "abort":
            if request.cancelled:
                raise Cancelled("cancelled", role=self.role, generation=generation)
            message = str(finish.get("message") or "")
            if isinstance(code := finish.get("status_code"), int):  # such as for a wrong grammar
                raise status_error(code, message, "/generate", self.role)
            raise BadReply(f"aborted by the runtime: {message}", role=self.role)
        if matched == NO_NUMBER:
            raise BadReply(
                "the model's output is NaN", role=self.role, hint="another --dtype may help"
            )
        if isinstance(matched, int) and eos is None:
            raise BadReply("the end of sequence is not among the tokens", role=self.role)
        return generation

    def _ends(self, params: SamplingParams, matched: Any) -> frozenset[int]:
        """Ids that end this request. An id that the runtime matched without being asked is one of
        the model's, and joins ``ends``.
        """
        if params.ignore_eos:  # the runtime then ignores all of them, also the request's
            return frozenset()
        asked = frozenset(params.stop_token_ids or ())
        if isinstance(matched, int) and matched not in asked:
            self.ends |= {matched}
        return self.ends | asked

    async def aselect(
        self, s: Executor, choices: list[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Chooses the choice that is most likely after a state's text. The state's ``request``
        cancels it.

        Raises:
            ConfigError: a choice is no text, or a temperature is set. LookaheadError: as ``ask``.
        """
        request = s.request or Request()
        s.request = None
        with self.naming:
            if not choices or not all(isinstance(one, str) and one for one in choices):
                raise ConfigError("select: choices are texts, at least one, and none is empty")
            if temperature > 0:
                hint = "leave temperature out: the likeliest choice is taken"
                raise ConfigError(f"select(temperature={temperature}): nothing is drawn", hint=hint)
            encoded = [self.tokenizer.encode(choice, True) for choice in choices]
            prompt = self.prompt_ids(s)
            scored = [await self._score(prompt, ids, request) for ids in encoded]
            alone = None
            if method.requires_unconditional_logprobs:
                # The first token of a prompt has no probability: SGLang reports None.
                alone = [
                    [(None, ids[0], None), *await self._score(ids[:1], ids[1:], request)]
                    for ids in encoded
                ]
            return method(
                choices=choices,
                normalized_prompt_logprobs=[
                    sum(one[0] for one in tokens) / len(tokens) for tokens in scored
                ],
                input_token_logprobs=scored,
                output_token_logprobs=[[] for _ in choices],
                unconditional_token_logprobs=alone,
            )

    async def _score(
        self, before: tuple[int, ...], option: tuple[int, ...], request: Request
    ) -> list[tuple[float, int, None]]:
        """The log-probability of each token of an option after a prompt; the options share the
        prompt's KV cache.
        """
        size = len(option)
        if not option:
            return []
        wanted = SamplingParams(
            max_new_tokens=0, temperature=0.0, return_logprob=True, logprob_start_len=-size
        )
        found = (await self.ask((*before, *option), wanted, request.part())).logprobs[-size:]
        if len(found) != size:
            raise BadReply(f"log-probabilities of {len(found)} tokens of {size}", role=self.role)
        return [(logprob, token, None) for logprob, token in zip(found, option, strict=True)]

    def shutdown(self) -> None:
        """Closes the connections, unless the loop is blocked by a program or a verifier. Call it in
        another thread than the loop's.
        """
        if self.loop.is_running():
            closed = asyncio.run_coroutine_threadsafe(self.transport.close(), self.loop)
            with suppress(TimeoutError):
                closed.result(CLOSE_SECONDS)

    def flush_cache(self, seconds: float = FLUSH_SECONDS) -> None:
        """Empties the runtime's radix cache and the log of requests. Call it in another thread than
        the loop's.

        Args:
            seconds: that the server waits until it is idle: right after a reply it is not yet.

        Raises:
            RuntimeRefused: it still runs requests.
        """
        path = f"/flush_cache?timeout={seconds:g}"
        call(self.transport.get(path, seconds + INFO_SECONDS), self.loop)
        self.request_log = RequestLog()
