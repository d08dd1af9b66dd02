"""The token layer: SGLang's speculative decoding, from our settings to the flags of a server.

One table says how each algorithm takes them. What SGLang itself refuses when it reads its command
line is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from lr_sglang.config import Runtime, TokenLayer
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.runtimes.placement import models, shapes

Flags = dict[str, Any]
TOKENS = 8  # paper section 4
TREE_STEPS = 5  # SGLang's own choice for a tree


@dataclass(frozen=True)
class Algorithm:
    """How one of SGLang's algorithms takes our settings.

    Attributes:
        name: as SGLang calls it.
        flags: of ``sglang.launch_server``, beside the algorithm's and the draft model's.
        draft: whether it drafts with a model of its own: ``none``, ``needed``, or ``bundled`` (one
            may be in the target's checkpoint).
        takes: the settings that mean something to it, beside ``tokens``.
        on_cpu: whether it runs without a GPU.
    """

    name: str
    flags: Callable[[TokenLayer], Flags]
    draft: Literal["none", "needed", "bundled"] = "needed"
    takes: frozenset[str] = frozenset()
    on_cpu: bool = False


def _ngram(layer: TokenLayer) -> Flags:
    tokens = layer.tokens or TOKENS
    # A trie of this depth holds all drafted tokens behind a match of length ngram_max.
    depth = None if layer.ngram_max is None else layer.ngram_max + tokens
    return {
        "speculative-num-draft-tokens": tokens + 1,
        "speculative-ngram-max-bfs-breadth": layer.topk,
        "speculative-ngram-max-trie-depth": depth,
    }


def _model(layer: TokenLayer) -> Flags:
    topk = layer.topk or 1
    steps = layer.steps or (TREE_STEPS if topk > 1 else layer.tokens or TOKENS)
    tokens = layer.tokens or (TOKENS if topk > 1 else steps)
    return {
        "speculative-num-steps": steps,
        "speculative-eagle-topk": topk,
        "speculative-num-draft-tokens": tokens + 1,
    }


_TREE = frozenset({"steps", "topk", "accept_length"})
ALGORITHMS: Mapping[str, Algorithm] = {
    "ngram": Algorithm(
        "NGRAM", _ngram, "none", frozenset({"topk", "ngram_max", "accept_length"}), on_cpu=True
    ),
    "standalone": Algorithm("STANDALONE", _model, takes=_TREE, on_cpu=True),
    "eagle": Algorithm("EAGLE", _model, takes=_TREE, on_cpu=True),
    "eagle3": Algorithm("EAGLE3", _model, takes=_TREE, on_cpu=True),
    "nextn": Algorithm("NEXTN", _model, "bundled", _TREE),
    # no number of tokens: the one that the draft was trained for
    "dflash": Algorithm(
        "DFLASH", lambda it: {"speculative-num-draft-tokens": it.tokens and it.tokens + 1}
    ),
    "dspark": Algorithm(
        "DSPARK", lambda it: {"speculative-dspark-block-size": it.tokens}, "bundled"
    ),
}


def find(layer: TokenLayer, where: str) -> Algorithm:
    """The algorithm that a token layer names.

    Raises:
        ConfigError: there is none.
    """
    if layer.algorithm not in ALGORITHMS:
        hint = did_you_mean(layer.algorithm, ALGORITHMS, f"one of none, {', '.join(ALGORITHMS)}")
        raise ConfigError(f"{where}: no token layer is called {layer.algorithm!r}", hint=hint)
    return ALGORITHMS[layer.algorithm]


def check(runtime: Runtime, device: str, where: str) -> None:
    """Checks a runtime's token layer before its server starts.

    Raises:
        ConfigError: settings that exclude each other, or that the algorithm or the device does not
            support.
    """
    layer = runtime.token_layer
    if not layer.on:
        return
    known = find(layer, where)

    def refuse(why: str, hint: str = "") -> NoReturn:
        raise ConfigError(f"{where}: token layer {layer.algorithm}: {why}", hint=hint)

    if device == "cpu" and not known.on_cpu:
        refuse(
            "SGLang runs it on GPUs only",
            f"on a CPU: {', '.join(n for n, it in ALGORITHMS.items() if it.on_cpu)}",
        )
    if known.draft == "needed" and not layer.draft_model:
        refuse("it drafts with a model", "give 'draft_model' of the token layer")
    if known.draft == "none" and layer.draft_model:
        refuse("it drafts without a model", "leave 'draft_model' out")
    for name in {"steps", "topk", "ngram_max", "accept_length"} - known.takes:
        if getattr(layer, name) is not None:
            refuse(f"it has no {name!r}", f"it takes {', '.join(['tokens', *sorted(known.takes)])}")
    if known.takes == _TREE:
        topk, steps, tokens = layer.topk or 1, layer.steps or TREE_STEPS, layer.tokens or TOKENS
        most = topk + (steps - 1) * topk * topk
        if topk == 1 and layer.steps and layer.tokens and steps != tokens:
            refuse(f"a chain (topk 1) of {steps} steps has {steps} tokens")
        if topk > 1 and not steps <= tokens <= most:
            why = (
                f"a tree of {steps} steps and topk {topk} has {steps} to {most} tokens, not "
                f"{tokens}"
            )
            refuse(why, "change 'tokens', 'steps' or 'topk'")
    if layer.accept_length and not shapes.is_shape(runtime.model):
        hint = "it is for random weights (dummy:NAME), of whose tokens none would be accepted"
        refuse(f"with 'accept_length' {runtime.model} would write what was drafted", hint)


def environment(layer: TokenLayer) -> dict[str, str]:
    """Variables of a server with this token layer.

    The simulated verification of a chain keeps the drafted tokens. For a tree SGLang repeats one
    token instead, and it takes all n-grams for trees (``NgramVerifyInput.tree_topk`` is -1).
    """
    if not layer.accept_length:
        return {}
    found = {"SGLANG_SIMULATE_ACC_LEN": str(layer.accept_length)}
    if layer.algorithm != "ngram" and (layer.topk or 1) == 1:
        found["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"
    return found


def check_vocabulary(model: str, draft_model: str, where: str) -> None:
    """Checks that a draft model of the token layer has the vocabulary of its target, if both are on
    this machine.

    Raises:
        ConfigError: it has another one.
    """
    for keys in (("tokenizer.json", "model", "vocab"), ("config.json", "vocab_size")):
        ours, theirs = (models.said(folder, *keys) for folder in (model, draft_model))
        if ours is not None and theirs is not None and ours != theirs:
            raise ConfigError(
                f"{where}: {draft_model} has another vocabulary than {model}: its token ids "
                "mean other tokens",
                hint="take a draft model of the same family, or --token-layer ngram",
            )


def flags(layer: TokenLayer, where: str = "runtime") -> Flags:
    """The flags of a token layer, empty where there is none; ``draft_model`` is passed on as it is.

    Raises:
        ConfigError: there is no such algorithm.
    """
    if not layer.on:
        return {}
    known = find(layer, where)
    wanted: Flags = {
        "speculative-algorithm": known.name,
        "speculative-draft-model-path": layer.draft_model or None,
    }
    found = {
        name: value for name, value in (wanted | known.flags(layer)).items() if value is not None
    }
    return found


def named(extra: Mapping[str, Any]) -> Flags:
    """A runtime's ``extra`` under the names of SGLang's command line: dashes within, none in
    front.
    """
    return {key.lstrip("-").replace("_", "-"): value for key, value in extra.items()}
