"""Attaches to runtimes that run already: checks that they answer, finds and checks their
tokenizer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from lr_sglang import plugin_files, pocket
from lr_sglang.config import FED, Runtime
from lr_sglang.engine.doubts import Name
from lr_sglang.engine.loop import call
from lr_sglang.engine.router import reach
from lr_sglang.engine.server_facts import fed_layer, layer_of_servers, scheduler_state
from lr_sglang.engine.transport import INFO_SECONDS, Transport
from lr_sglang.errors import BadReply, ConfigError, LookaheadError, RuntimeRefused
from lr_sglang.runtimes.launching import probe
from lr_sglang.runtimes.placement import models

if TYPE_CHECKING:  # slow imports, which commands need not wait for
    from lr_sglang.engine.tokenizer import Tokenizer
    from lr_sglang.frontend.backend import RuntimeBackend

TEXT = "It is 7 + 12 = 19.\n\nSo f(x) has 3 roots: été, 中文, 🎉"
# A text in which tokenizers differ: runs of white space and digits, letters of two characters.
TOKENIZED = TEXT + "\n\tif x == 1234567:\r\n    don't  say e\u0301 or Київ  \n\n\n\n한국어."
# Characters of a text that an error shows.
SHOWN = 24
NO_SGLANG = "give the address of an SGLang server, or of its router: http://HOST:PORT"
_POCKET = re.compile(
    r"(?:^|/)(?:pocket(?::|/weights/|/)|lr-sglang/bodies/[0-9a-f]{16}/)"
    rf"((?:{'|'.join(pocket.MODELS)})(?:@[\w.-]+)?)/?$"
)
# A model in the hub's cache.
_HUB = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-f]+/?$")


@dataclass(frozen=True)
class Attached:
    """A runtime that answers."""

    url: str
    tokenizer: str
    api_key: str = field(default="", repr=False)


def attach(role: str, runtime: Runtime, timeout: float = 5.0) -> Attached:
    """Checks that the runtime at ``runtime.url``, a server or SGLang's router, answers.

    Raises:
        RuntimeDown, RuntimeTimeout, RuntimeRefused, BadReply: it does not answer, or with an error.
        ConfigError: its tokenizer cannot be found from here, or an API key's variable is not set.
    """
    key = api_key(role, runtime)
    url = runtime.url.rstrip("/")
    tokenizer = models.locate(runtime.tokenizer, role) if runtime.tokenizer else ""
    infos = what_runs(role, runtime, timeout)
    if tokenizer:
        return Attached(url, tokenizer, key)
    if not infos:
        raise ConfigError(
            f"{url} does not say what it runs: it has no /model_info, and no worker that can "
            "be asked from here, as SGLang's router would",
            role=role,
            hint="give 'tokenizer' (a path or a hub name) for this runtime, or the URL of an "
            "SGLang server",
        )
    named = [info.tokenizer for info in infos]
    here = [one for one in named if not models.is_path(one) or plugin_files.expanded(one).is_dir()]
    if not here:
        raise ConfigError(
            f"{url} has its tokenizer in {named[0]}, which this machine does not have",
            role=role,
            hint="give 'tokenizer' (a path here or a hub name) for this runtime",
        )
    return Attached(url, here[0], key)


def what_runs(role: str, runtime: Runtime, timeout: float = 5.0) -> list[probe.ModelInfo]:
    """What the server at ``runtime.url`` runs, or each worker behind a router that can be asked
    from here; empty if the server does not report its model.

    Raises:
        RuntimeDown: the server does not answer, or the router has no workers.
        RuntimeTimeout, RuntimeRefused, BadReply, ConfigError: as ``attach``.
    """
    url = runtime.url.rstrip("/")
    key = api_key(role, runtime)
    try:
        told = call(_infos("/model_info", url, role, key, timeout))
        return [probe.info_of(one, url, role) for one in told]
    except (RuntimeRefused, BadReply) as error:
        if getattr(error, "status", 0) != 404:
            error.message = error.message if url in error.message else f"{url}{error.message}"
            error.hint = error.hint or NO_SGLANG
            raise
    _refuse_other_servers(url, key, timeout, role)
    return []


async def _infos(path: str, url: str, role: str, key: str, timeout: float) -> list[dict[str, Any]]:
    """A document of each server behind a URL; raises as ``reach``, and as ``Client.get``."""
    client = await reach(url, role, key, timeout)
    try:
        return await client.infos(path, timeout)
    finally:
        await client.close()


def layer_of(role: str, runtime: Runtime, timeout: float = 5.0) -> str | None:
    """The token layer of the server at ``runtime.url``, as of ``modes.Able``; None also if it does
    not answer, which ``what_runs`` reports.

    Raises:
        ConfigError: as ``api_key``.
    """
    url = runtime.url.rstrip("/")
    key = api_key(role, runtime)
    try:
        infos = call(_infos("/server_info", url, role, key, timeout))
    except LookaheadError:
        return None
    fed, _ = fed_layer([scheduler_state(info) for info in infos])
    return FED if fed is not None else layer_of_servers(infos)


def _refuse_other_servers(url: str, key: str, timeout: float, role: str) -> None:
    """Names an endpoint of ours, or another server with OpenAI's routes, where one of SGLang is
    wanted.

    Raises:
        ConfigError: it is such a server.
    """
    bare = url.removesuffix("/v1")
    try:
        found = probe.document(bare, "/v1/models", api_key=key, timeout=timeout, role=role)
        owner = str(found["data"][0]["owned_by"])
    except (LookaheadError, LookupError, TypeError):
        return
    if owner == "sglang" and bare != url:
        hint = f"give {bare}"
        raise ConfigError(f"{url} ends in /v1, which is not wanted here", role=role, hint=hint)
    if owner == "lr-sglang":
        hint = "give the address of an SGLang server; a client of the endpoint is any of OpenAI's"
        raise ConfigError(f"{url} is an endpoint of lr-sglang", role=role, hint=hint)
    if owner != "sglang":
        hint = "SGLang's own routes are needed: token ids, aborts, prefixes"
        raise ConfigError(f"{url} is no SGLang server, but of {owner!r}", role=role, hint=hint)


def model_of(role: str, runtime: Runtime) -> str:
    """The model's name; asks a runtime at a URL. For the directory of a pocket model or a shape,
    its short name; for one in the hub's cache, the hub's.

    Raises:
        LookaheadError: as ``what_runs``; but a server that does not report its model is named by
            its tokenizer.
    """
    model = runtime.model
    if runtime.url:
        infos = what_runs(role, runtime)
        model = infos[0].model if infos else runtime.tokenizer  # checked when a run attaches to it
    if ours := _POCKET.search(model):
        return f"{models.POCKET}{ours[1]}"
    if cached := _HUB.search(model):
        return f"{cached[1]}/{cached[2]}"
    return models.shape_of(model) or model


def served_name(model: str) -> str:
    """The name under which clients know a model (as of ``model_of``): a folder's own, without its
    place on a machine.
    """
    if models.is_path(model) or plugin_files.expanded(model).exists():
        return plugin_files.expanded(model).resolve().name
    return model


def api_key(role: str, runtime: Runtime) -> str:
    """The key that ``runtime.api_key_env`` names, or an empty string.

    Raises:
        ConfigError: the variable is not set, or its value cannot be sent in a header.
    """
    variable = runtime.api_key_env
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()  # a secret read from a file may end in a newline
    if not (key and key.isascii() and key.isprintable()):
        why = "holds a character that no header can have" if key else "is not set"
        hint = "set it to the server's key, or leave api_key_env out"
        raise ConfigError(f"the variable {variable} (api_key_env) {why}", role=role, hint=hint)
    return key


async def check_tokens(
    transport: Transport, tokenizer: Tokenizer, role: str, timeout: float = INFO_SECONDS
) -> str:
    """Compares the tokens that the runtime reads and writes with those of ``known``. A runtime that
    cannot be asked passes.

    Returns:
        A warning if it gives other ids to a text; else an empty text.

    Raises:
        ConfigError: its ids are other text there than here, so that all texts would be wrong.
    """
    asked: dict[str, Any] = {"prompt": TOKENIZED, "add_special_tokens": True}
    try:
        theirs = tuple(map(int, (await transport.post("/tokenize", asked, timeout))["tokens"]))
    except (LookaheadError, LookupError, TypeError, ValueError):
        return ""
    ours = tokenizer.encode(TOKENIZED)
    here = tokenizer.decode(theirs).strip()
    there = tokenizer.decode(ours).strip()
    with suppress(LookaheadError, LookupError, TypeError):  # else they should be those of the text
        asked = {"tokens": list(theirs), "skip_special_tokens": True}
        there = str((await transport.post("/detokenize", asked, timeout))["text"]).strip()
    if here != there:
        first = max(0, _first_difference(here, there) - 4)
        seen = here[first:][:SHOWN]
        meant = there[first:][:SHOWN]
        raise ConfigError(
            "it has another tokenizer than the one that is used for it here: its tokens of "
            f"{meant!r} are {seen!r} here",
            role=role,
            hint="name the tokenizer of the model that runs there "
            f"(-o runtimes.{role}.tokenizer=PATH), or start again with that model",
        )
    if theirs == ours:
        return ""
    first = _first_difference(ours, theirs)
    mine, its = ([tokenizer.spell([one]) for one in ids[first:][:3]] for ids in (ours, theirs))
    return (
        "its server gives other tokens to a text than its model's tokenizer does here "
        f"({mine} here, {its} there): prompts that it makes itself are others, and share no prefix "
        "with those from here"
    )


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The place at which two sequences begin to differ."""
    pairs = zip(one, other, strict=False)
    return next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), len(one))


async def check_template(
    transport: Transport,
    tokenizer: Tokenizer,
    role: str,
    arguments: Mapping[str, Any],
) -> str:
    """Checks that a conversation has the prompt here that the runtime itself gives it. A runtime
    that cannot be asked, or has no template either, passes.

    Args:
        arguments: of its template, as the runtime was started.

    Returns:
        A warning if the prompts differ; else an empty text.

    Raises:
        ConfigError: the runtime renders conversations, and its model has no template to do it here.
    """
    asked = [{"role": "user", "content": TEXT}]
    try:
        found = await transport.post("/tokenize", {"messages": asked}, INFO_SECONDS)
        theirs = tuple(map(int, found["tokens"]))
    except (LookaheadError, LookupError, TypeError, ValueError):
        return ""
    if not tokenizer.template:
        raise ConfigError(
            "its server renders conversations by a template of SGLang's own, and its model has "
            "none that could be followed here",
            role=role,
            hint="start it with --chat-template FILE.jinja; one that is started here, with "
            f"-o runtimes.{role}.extra.chat-template=FILE.jinja",
        )
    with suppress(TemplateError, ValueError, TypeError):
        ours = tokenizer.chat(asked, True, arguments)
        # the same text in other tokens is what ``check_tokens`` tells
        if ours.ids == theirs or tokenizer.spell(ours.ids) == tokenizer.spell(theirs):
            return ""
    return (
        "its server renders conversations by another template than its model's: prompts differ "
        "from its own; start it with --chat-template FILE.jinja, which is followed"
    )


async def prompt_doubts(
    transport: Transport, tokenizer: Tokenizer, role: str, arguments: Mapping[str, Any]
) -> dict[Name, str]:
    """Where a runtime itself gives other tokens or another template to a prompt.

    Args:
        arguments: as of ``check_template``.

    Raises:
        ConfigError: as ``check_tokens``.
    """
    found: dict[Name, str] = {}
    if differs := await check_tokens(transport, tokenizer, role):
        found["tokens"] = differs
    if not tokenizer.template:
        return found  # conversations are refused when there is one
    if differs := await check_template(transport, tokenizer, role, arguments):
        found["template"] = differs
    return found


def faults(roles: Mapping[str, RuntimeBackend], *, drawn: bool = True) -> Iterator[str]:
    """What is wrong with runtimes from the start, a warning each.

    Args:
        drawn: whether answers are drawn, so that seeds matter.
    """
    for role, one in roles.items():
        for name, text in one.facts.doubts.items():
            if name != "seeds":
                yield f"{role}: {text}"
    if drawn:
        yield from without_seeds(roles)


def without_seeds(roles: Mapping[str, RuntimeBackend]) -> Iterator[str]:
    """What follows for the answers of these runtimes, for each fault that ``seed_fault`` found."""
    for fault in dict.fromkeys(
        one.facts.seed_fault for one in roles.values() if one.facts.seed_fault
    ):
        names = " and ".join(role for role, one in roles.items() if one.facts.seed_fault == fault)
        yield (
            f"{names}: seeds have no effect there: {fault}. None is sent, so the same seed does "
            "not give the same answer again, draft and target share no draws, and a lossless "
            "answer is another draw from the target's distribution"
        )
