"""What the servers of a runtime say of themselves, and what they were seen to do: asked once, when
they are connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from jinja2 import Environment, TemplateError, meta

from lr_sglang.engine.doubts import Name
from lr_sglang.engine.tokenizer import Tokenizer, ends_of_server
from lr_sglang.modes import DIFFERENT
from lr_sglang.sglang_api import internal_state
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD, LEFT_OUT, PROTOCOL, RELAXED, SEEDS_FIELD

DEFAULT_CONTEXT = 32768
# Tokens that a branch does not share: its own step and the drafted step before it.
BRANCH_TOKENS = 200
# The arguments of chat templates that switch thinking on and off.
SWITCHES = frozenset(("enable_thinking", "thinking"))


@dataclass(frozen=True)
class FedLayer:
    """What a runtime verifies that takes lines (`Client.deliver`).

    Attributes:
        width: tokens of one verification: the one from which it goes on, and those of a line.
        draws: how the verification draws: with the numbers of the request's ``seeds``, as plain
            decoding does, or with ``coins`` of its own.
    """

    width: int
    draws: Literal["seeds", "coins"]


def fed_layer(states: Sequence[Mapping[str, Any]]) -> tuple[FedLayer | None, str]:
    """The layer that all servers of a runtime have, and why it cannot be used; empty if it can, or
    if no server has it.

    Args:
        states: the internal state of each server.
    """
    told = [state.get(FED_FIELD) for state in states]
    if not any(told):
        return None, ""
    if not all(isinstance(one, Mapping) for one in told):
        return None, "only some of its servers have token layer fed"
    layers = [dict(one) for one in told if isinstance(one, Mapping)]
    for layer in layers:
        if layer.get("protocol") != PROTOCOL:
            version = layer.get("protocol")
            return None, (
                f"its token layer fed speaks version {version} of the protocol, and this is "
                f"version {PROTOCOL}: install the same release of lr-sglang at both ends"
            )
        if refused := layer.get("refused"):
            return None, f"its token layer fed is refused: {refused}"
    seeds = all(layer.get("draws") == "seeds" for layer in layers)
    width = min(int(layer.get("width") or 1) for layer in layers)
    return FedLayer(width, "seeds" if seeds else "coins"), ""


@dataclass(frozen=True)
class ServerFacts:
    """What a runtime's servers do, as far as it is known.

    Attributes:
        context: the longest prompt and answer in tokens.
        seeded: whether they honour seeds; ``seed_fault``: why they do not, where they were asked.
        places: where they begin to count the draws of a seed: at the first token of the ``answer``,
            or of the ``prompt``, as SGLang's own sampling on a GPU does.
        max_running_requests: requests that they run at a time; None if unknown.
        kv_tokens: tokens that their KV cache holds; None if unknown.
        token_layer: SGLang's name of their speculative algorithm, empty for none; None if unknown.
        relaxed: parameters, each with the value that does nothing, that they do not apply as plain
            decoding does (``plugin_protocol``).
        fed: their token layer that takes lines; None if they have none, or one that cannot be used.
        counts_written: whether their penalties count the tokens of the answer at the end of a
            prompt, as our plugin's on a CPU do.
        streams: whether they stream generations.
        increments: whether each event of such a stream has the new tokens only.
        repeatable: whether they run with ``--enable-deterministic-inference``.
        tool_call_parser: SGLang's name of their parser of tool calls; empty for none.
        forces_reasoning: whether their own parser takes the beginning of an answer for thinking,
            unless the request has switched that off: as of Qwen3, whose template has a switch and
            leaves the opening marker to the model.
        template_defaults: arguments of the chat template that they were started with.
        prefix_cache: the class of their prefix cache; empty if nothing was asked.
        little_reuse: why they may compute prefixes again, with what to do; empty if nothing says
            so.
        ends: ids that end a sequence, beside those of the tokenizer.
        doubts: what is wrong with them from the start.
        infos: the ``/server_info`` of each.
    """

    context: int = DEFAULT_CONTEXT
    seeded: bool = False
    seed_fault: str = ""
    places: Literal["answer", "prompt"] = "answer"
    max_running_requests: int | None = None
    kv_tokens: int | None = None
    token_layer: str | None = None
    relaxed: Mapping[str, float] = field(default_factory=dict)
    fed: FedLayer | None = None
    counts_written: bool = False
    streams: bool = True
    increments: bool = False
    repeatable: bool = False
    tool_call_parser: str = ""
    forces_reasoning: bool = False
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    prefix_cache: str = ""
    little_reuse: str = ""
    ends: frozenset[int] = frozenset()
    doubts: Mapping[Name, str] = field(default_factory=dict)
    infos: Sequence[Mapping[str, Any]] = ()

    @property
    def room(self) -> int | None:
        """Branches that they run at a time: their slots, or fewer if their memory is short; None
        if unknown.
        """
        held = None if self.kv_tokens is None else max(1, self.kv_tokens // BRANCH_TOKENS)
        known = (self.max_running_requests, held)
        return min((limit for limit in known if limit is not None), default=None)

    def relaxes(self, params: Mapping[str, Any]) -> list[str]:
        """Those of a request's parameters, by SGLang's names, that the servers do not apply as
        plain decoding does: its tokens follow neither from a seed nor from temperature 0.
        """
        left_out = LEFT_OUT if params.get("temperature") == 0 else ()
        return [
            name
            for name, nothing in self.relaxed.items()
            if params.get(name, nothing) != nothing and name not in left_out
        ]

    def follows_seed(self, params: Mapping[str, Any]) -> bool:
        """Whether the same seed gives the same tokens, for a request with such parameters."""
        same = self.seeded or params.get("temperature") == 0
        return same and not self.relaxes(params)


UNKNOWN = ServerFacts()


def facts_of(
    infos: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    context: int | None,
    routed: bool,
    seed_fault: str,
    doubts: Mapping[Name, str],
) -> ServerFacts:
    """The facts of a runtime. Its servers' slots add up, since any of them may get a request.

    Args:
        infos: the ``/server_info`` of each server; empty if none tells it.
        tokenizer: the tokenizer of its model.
        context: the context length in its settings.
        routed: whether a router is in front of them.
        seed_fault, doubts: as in ``ServerFacts``; doubts of its settings are added.
    """
    found = dict(doubts)
    if seed_fault:
        found["seeds"] = f"it ignores seeds: {seed_fault}"
    slots = _sum(map(_slots, infos))
    wanted = _sum(info.get("max_running_requests") for info in infos)
    if slots and wanted and slots < wanted:
        short = "--mem-fraction-static, and for a hybrid --max-mamba-cache-size, give it more"
        found["slots"] = (
            f"it runs {slots} requests at a time of {wanted} that were asked for: {short}"
        )
    fed, unusable = fed_layer([scheduler_state(info) for info in infos])
    if unusable:
        found["fed"] = unusable
    coins = fed is not None and fed.draws == "coins"
    on_cpus = all(info.get("device") == "cpu" for info in infos)
    numbered = all(scheduler_state(info).get(SEEDS_FIELD) for info in infos)
    caches = [scheduler_state(info).get(internal_state.CACHE_FIELD) for info in infos]
    incremental = {bool(info.get("incremental_streaming_output")) for info in infos}
    parsers = {str(info.get("tool_call_parser") or "") for info in infos}
    parsed = bool(infos) and all(info.get("reasoning_parser") for info in infos)
    contexts = [_context(info, context) for info in infos]
    return ServerFacts(
        context=min(contexts, default=context or DEFAULT_CONTEXT),
        seeded=honours_seeds(infos) and not seed_fault and not coins,
        seed_fault=seed_fault,
        places="answer" if on_cpus or numbered else "prompt",
        max_running_requests=slots,
        kv_tokens=_sum(map(_held, infos)),
        token_layer=layer_of_servers(infos),
        relaxed={name: nothing for info in infos for name, nothing in _relaxed(info).items()},
        fed=fed,
        counts_written=on_cpus and bool(caches) and all(caches),
        # ``stream_output``, an older setting, may leave out some of the new tokens
        streams=len(incremental) == 1 and not any(info.get("stream_output") for info in infos),
        increments=True in incremental,
        repeatable=any(info.get("enable_deterministic_inference") for info in infos),
        tool_call_parser=parsers.pop() if len(parsers) == 1 else "",
        forces_reasoning=parsed and _switches_thinking(tokenizer),
        template_defaults=template_defaults(infos),
        prefix_cache=", ".join(sorted({str(cache or "not told") for cache in caches})),
        little_reuse=_little_reuse(infos, routed),
        ends=frozenset().union(*map(ends_of_server, infos)),
        doubts=found,
        infos=infos,
    )


def template_defaults(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The arguments of the chat template that the servers were started with."""
    found = infos[0].get("default_chat_template_kwargs") if infos else None
    return found if isinstance(found, Mapping) else {}


def honours_seeds(infos: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all servers honour seeds, as their settings say: on a CPU, and on a GPU by our plugin
    where it is turned on; else only with deterministic inference and no token layer.
    """
    return bool(infos) and all(
        info.get("device") == "cpu"
        or scheduler_state(info).get(SEEDS_FIELD)
        or (info.get("enable_deterministic_inference") and not info.get("speculative_algorithm"))
        for info in infos
    )


def _relaxed(info: Mapping[str, Any]) -> Mapping[str, float]:
    """As ``ServerFacts.relaxed``: on a GPU with a token layer; our plugin on a CPU verifies each
    token with all that is before it.
    """
    if info.get("device") == "cpu" or not info.get("speculative_algorithm"):
        return {}
    seeds = scheduler_state(info).get(SEEDS_FIELD)
    return RELAXED if seeds else RELAXED | LEFT_OUT


def layer_of_servers(infos: Sequence[Mapping[str, Any]]) -> str | None:
    """SGLang's name of the token layer of a runtime's servers; empty for none, None if none of them
    says what it is, ``modes.DIFFERENT`` if they have different ones.
    """
    layers = {str(info.get("speculative_algorithm") or "") for info in infos}
    return DIFFERENT if len(layers) > 1 else next(iter(layers), None)


def scheduler_state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the server's scheduler, or of the first replica's."""
    states = info.get("internal_states") or [{}]
    return states[0] if isinstance(states[0], Mapping) else {}


def _held(info: Mapping[str, Any]) -> int | None:
    """Tokens that the server's KV memory holds."""
    found = info.get("max_total_num_tokens") or scheduler_state(info).get("max_total_num_tokens")
    return found if isinstance(found, int) else None


def _slots(info: Mapping[str, Any]) -> int | None:
    """The number of requests that all replicas of the server run at a time, as it reports."""
    each = scheduler_state(info).get("effective_max_running_requests_per_dp")
    return each * max(1, int(info.get("dp_size") or 1)) if isinstance(each, int) else None


def _sum(each: Iterable[int | None]) -> int | None:
    """The sum over all servers; None if one of them reports no value, or if there are no
    servers.
    """
    known = list(each)
    return None if not known or None in known else sum(filter(None, known))


def _context(info: Mapping[str, Any], configured: int | None) -> int:
    """The longest prompt and answer in tokens: the model's context, or the server's memory if that
    is less.
    """
    limits = (
        configured,
        info.get("context_length"),
        _held(info),
        info.get("max_req_input_len"),
    )
    return min((n for n in limits if isinstance(n, int)), default=DEFAULT_CONTEXT)


def _switches_thinking(tokenizer: Tokenizer) -> bool:
    """Whether a chat template names the marker that opens thinking, and has a switch for it."""
    marks = tokenizer.thinking
    if not marks.always or marks.opens not in tokenizer.template:
        return False
    with suppress(TemplateError):
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(tokenizer.template)
        return not SWITCHES.isdisjoint(meta.find_undeclared_variables(parsed))
    return False


def _little_reuse(infos: Sequence[Mapping[str, Any]], routed: bool) -> str:
    if any(info.get("disable_radix_cache") for info in infos):
        return "its prefix cache is off: start it without --disable-radix-cache"
    if routed:
        return (
            "its router may spread the branches of an answer: --policy manual keeps them together"
        )
    if any(info.get("uses_mamba_radix_cache") for info in infos):
        return (
            "its model keeps states of some places of a prompt only (a hybrid): "
            "docs/hybrids.md has its flags"
        )
    page = max((int(info.get("page_size") or 1) for info in infos), default=1)
    return f"its cache has pages of {page} tokens: --page-size 1 shares more" if page > 1 else ""
