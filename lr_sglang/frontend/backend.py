"""A SGLang backend for one runtime of a deployment.

Unlike SGLang's own ``RuntimeEndpoint`` it sends prompts as token ids, rendered by the model's template, and seeds. It
can cancel every request on the server, and a failure reaches the reader of the state at once, as a named error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from lr_sglang.config import Limits
from lr_sglang.engine.generation import Generation, Written, each_stop
from lr_sglang.engine.loop import background, call, turns
from lr_sglang.engine.pool import Pool
from lr_sglang.engine.prefix_reuse import LoggedRequest, RequestLog
from lr_sglang.engine.request import Request
from lr_sglang.engine.tokenizer import Tokenizer, render, resolve
from lr_sglang.engine.transport import Transport
from lr_sglang.errors import BadReply, Cancelled, ConfigError, LookaheadError, PromptTooLong
from lr_sglang.frontend.choices import decide
from lr_sglang.frontend.executor import Executor
from lr_sglang.frontend.values import SamplingParams
from lr_sglang.sglang_api.interpreter import (
    BaseBackend,
    ChatTemplate,
    ChoicesDecision,
    ChoicesSamplingMethod,
    RuntimeEndpoint,
)
from lr_sglang.steps.judge_check import JudgeChecks
from lr_sglang.steps.step import StepStop
from lr_sglang.steps.token_text import TokenText

# SGLang's interpreter writes roles into the state's text by a template; ours are rendered from ``messages_`` instead.
_NO_MARKERS = ChatTemplate(
    name="lr-sglang",
    default_system_prompt=None,
    role_prefix_and_suffix=dict.fromkeys(("system", "user", "assistant"), ("", "")),
)
BRANCH_TOKENS = 200  # tokens that a branch does not share: its own step and the drafted step before it
NO_NUMBER = "NaN happened"  # SGLang's ``matched`` where a model's output is NaN


class _Naming:
    """Sets a runtime's role on errors; turns any that is not a ``LookaheadError`` into ``BadReply``."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, LookaheadError):
            error.role = error.role or self._role
        elif isinstance(error, Exception):
            raise BadReply(repr(error), role=self._role) from error


class RuntimeBackend(BaseBackend):
    """Runs SGLang programs on one runtime.

    Args:
        role: ``target``, ``draft`` or ``judge``.
        transport: how to reach the runtime.
        tokenizer: of the runtime's model.
        context: the model's context length in tokens.
        timeout: seconds that a generation of up to 1,000 tokens may take; a longer one may take more in proportion.
        seeded: whether the runtime honours a seed.
        max_running_requests: requests that it runs at a time; None is not known.
        kv_tokens: tokens that its KV memory holds; None is not known.
        token_layer: SGLang's name of its speculative algorithm, empty for none; None is not known.

    Attributes:
        pool: the slots that its requests wait for: ``room`` of them, or what other processes leave of it.
        tool_call_parser: SGLang's name of how the server finds calls of tools in a text; empty for not at all.
        checks: of a judge: what is known of it from pairs of steps that differ.
        prefix_cache: the class that SGLang has chosen for it; servers that we are not installed beside do not tell.
        simulated: whether the runtime waits instead of computing, so that its times are no measurement of a model.
        ends: ids that end a sequence, as far as they are known.
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
        max_running_requests: int | None = None,
        kv_tokens: int | None = None,
        token_layer: str | None = None,
    ) -> None:
        super().__init__()
        self.role, self.transport, self.tokenizer = role, transport, tokenizer
        self.context, self.timeout, self.seeded = context, timeout, seeded
        self.token_layer = token_layer
        self.pool = Pool()
        self.set_capacity(max_running_requests, kv_tokens)
        self.simulated, self.tool_call_parser, self.prefix_cache = False, "", ""
        self.checks = JudgeChecks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ends, self.chat_template = tokenizer.ends, _NO_MARKERS
        self.roles: dict[str, RuntimeBackend] = {role: self}
        self.request_log, self.naming = RequestLog(), _Naming(role)

    def set_capacity(self, max_running_requests: int | None, kv_tokens: int | None) -> None:
        """Sets the runtime's limits: requests at a time, and tokens in its KV memory; None is not known."""
        self.max_running_requests, self.kv_tokens = max_running_requests, kv_tokens
        known = [max_running_requests, None if kv_tokens is None else max(1, kv_tokens // BRANCH_TOKENS)]
        self.room = self.pool.size = min((limit for limit in known if limit is not None), default=None)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of its requests: the one that it is bound to, else the process's own. Asking binds nothing."""
        return self._loop or background()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes its requests on this loop, if it has no loop yet; its first request binds it to that which it is on."""
        if self._loop is None or self._loop.is_closed():
            self._loop = loop

    def get_model_name(self) -> str:
        return str(call(self.transport.get("/model_info"), self.loop).get("model_path", ""))

    def prompt_ids(self, s: Executor) -> tuple[int, ...]:
        """The ids of everything a state has said so far.

        Raises:
            ConfigError: some of it was said in roles and some outside of them; no template has a place for that.
        """
        if not s.messages_ and s.cur_role is None:
            return resolve(s.text_, self.tokenizer, begins=True)
        if s.cur_role != "assistant":
            return render(s, self.tokenizer).ids
        where = len(s.messages_), s.cur_role_begin_pos
        if self.tokenizer not in s.opened or s.opened[self.tokenizer][0] != where:  # else a fork goes on from there
            s.opened = {**s.opened, self.tokenizer: (where, render(s, self.tokenizer).ids)}
        opened: tuple[int, ...] = s.opened[self.tokenizer][1]
        written = TokenText.wrap(s.text_).ids_from(s.cur_role_begin_pos, self.tokenizer.vocabulary)
        return opened + (resolve(s.text_[s.cur_role_begin_pos :], self.tokenizer) if written is None else written)

    def budget(self, s: Executor, limits: Limits) -> tuple[int, int]:
        """Tokens of a state's prompt, and of the answer that may follow it.

        Raises:
            PromptTooLong: none may. BadReply: the model's chat template fails.
        """
        with self.naming:
            prompt = len(self.prompt_ids(s))
        if (left := limits.budget(prompt, self.context)) < 1:
            raise PromptTooLong(
                f"the prompt has {prompt} tokens and leaves no room for an answer",
                role=self.role,
                hint=f"the model's context is {self.context} tokens; --max-total-tokens may be lower",
            )
        return prompt, left

    async def agenerate(self, s: Executor, params: SamplingParams) -> tuple[str, dict[str, Any]]:
        """Generates text after a state; the text of a step carries its token ids."""
        request, s.request = s.request or Request(), None
        try:
            with self.naming:
                if s.images_:
                    raise ConfigError("pictures are not supported", hint="ask a SGLang RuntimeEndpoint instead")
                if params.dtype is not None:
                    RuntimeEndpoint._handle_dtype_to_regex(self, params)
                request.result = generation = await self.ask(self.prompt_ids(s), params, request)
                return self._text(generation, isinstance(params.stop, StepStop)), generation.meta
        except LookaheadError as error:
            request.result = error
            raise

    def _text(self, generation: Generation, is_step: bool) -> str:
        ids = generation.ids[:-1] if generation.eos is not None else generation.ids
        text, decoded = generation.meta["text"], self.tokenizer.decode(ids)
        if not is_step and text != decoded and isinstance(generation.meta["finish_reason"].get("matched"), str):
            return str(text)  # SGLang has cut the stop string off; otherwise the texts differ by a space in front
        return TokenText.of(decoded if is_step else text, ids, self.tokenizer.vocabulary)

    async def astream(self, s: Executor, params: SamplingParams) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """One piece: steps are short, and a program that streams sees each of them as it ends."""
        yield await self.agenerate(s, params)

    async def ask(self, ids: tuple[int, ...], params: SamplingParams, request: Request) -> Generation:
        """One /generate, once the runtime has a slot for it.

        Args:
            ids: prompt.
            params: SGLang's sampling parameters. A negative ``logprob_start_len`` counts from the end of the prompt:
                -5 asks for the log-probabilities of its last five tokens.
            request: how to cancel it.

        Raises:
            LookaheadError: any of the transport's, or Cancelled.
        """
        payload: dict[str, Any] = {"input_ids": ids, "sampling_params": params.sent}
        if request.seed is not None and self.seeded:
            payload["sampling_params"] = {**params.sent, "sampling_seed": request.seed}
        most = None
        if params.return_logprob:
            most = params.logprob_start_len
            if most is not None and most < 0:  # SGLang gives none for the first token that it is asked about
                most = max(0, len(ids) + most - 1)
            payload |= {"return_logprob": True, "logprob_start_len": -1 if most is None else most}
        # A long generation may take longer.
        patience = self.timeout * request.patience * max(1.0, params.max_new_tokens / 1000)
        if self._loop is None:
            self.bind(asyncio.get_running_loop())
        await self.pool.enter(request, request.order)
        try:
            entry = self.request_log.add(ids, time.time(), most)
            reply = await self.transport.generate(payload, request, patience)
        finally:
            self.pool.leave()
        return self._read(reply, params, request, entry)

    def _read(
        self, reply: dict[str, Any], params: SamplingParams, request: Request, entry: LoggedRequest
    ) -> Generation:
        try:
            meta = dict(reply["meta_info"])
            finish = dict(meta["finish_reason"])
            ids = tuple(map(int, reply["output_ids"]))
            meta["text"] = str(reply["text"])
            kind, matched = str(finish["type"]), finish.get("matched")
            logprobs = tuple(float(one[0]) for one in meta.get("input_token_logprobs") or () if one[0] is not None)
        except (KeyError, TypeError, ValueError) as error:
            raise BadReply(f"a reply without {error}", role=self.role) from error
        entry.ended(ids, meta, request.sent, time.time())
        made, eos = Written(ids, finish, meta["text"]), None
        if kind != "abort":
            ends = self._ends(params, matched)
            stops = () if isinstance(params.stop, StepStop) else each_stop(params.stop)
            made = made.until(params.max_new_tokens, ends, stops, self.tokenizer.decode)
            kind, eos = made.finish["type"], made.ids[-1] if made.ids and made.ids[-1] in ends else None
            meta |= {"finish_reason": made.finish, "text": made.text, "completion_tokens": len(made.ids)}
        prompt, cached = int(meta.get("prompt_tokens") or 0), meta.get("cached_tokens")
        dropped = len(ids) - len(made.ids)
        generation = Generation(made.ids, kind, eos, prompt, cached, meta, entry, logprobs, dropped)
        if kind == "abort":
            if request.cancelled:
                raise Cancelled("cancelled", role=self.role, generation=generation)
            raise BadReply(f"aborted by the runtime: {finish.get('message', '')}", role=self.role)
        if matched == NO_NUMBER:
            raise BadReply("the model computed no numbers (NaN)", role=self.role, hint="another --dtype may help")
        if isinstance(matched, int) and eos is None:
            raise BadReply("the end of sequence is not among the tokens", role=self.role)
        return generation

    def _ends(self, params: SamplingParams, matched: Any) -> frozenset[int]:
        """Ids that end this request. An id that the runtime matched and the request did not name is the model's."""
        if params.ignore_eos:  # the runtime then ignores all ids, also those of the request
            return frozenset()
        asked = frozenset(params.stop_token_ids or ())
        if isinstance(matched, int) and matched not in asked:
            self.ends |= {matched}
        return self.ends | asked

    async def aselect(
        self, s: Executor, choices: list[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Which of the choices is likeliest after a state's text. The state's ``request`` cancels what is asked.

        Raises:
            ConfigError: a choice is empty. LookaheadError: as ``ask``.
        """
        request, s.request = s.request or Request(), None
        with self.naming:
            if not all(choices):
                raise ConfigError("select: a choice is empty")
            encoded = [self.tokenizer.encode(choice, True) for choice in choices]
            return await decide(
                choices, encoded, self.prompt_ids(s), method, lambda ids, params: self.ask(ids, params, request.part())
            )

    def shutdown(self) -> None:
        """Closes the connections, in any thread but the loop's; leaves them where the loop is held up."""
        if self.loop.is_running() and turns(self.loop):
            call(self.transport.close(), self.loop)

    def flush_cache(self) -> None:
        """Empties the runtime's radix cache and the log of shared prefixes. Not on the loop."""
        call(self.transport.get("/flush_cache"), self.loop)
        self.request_log = RequestLog()
