"""Whether the hub answers, and has a model. Asked before servers start, because SGLang tries for
minutes.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from http.client import HTTPException

from lr_sglang.errors import ConfigError, SetupError

HUB_SECONDS = 3.0  # for one question
MODEL_HINT = "give the path of a directory, or pocket:target"


def address() -> str:
    """Where the hub is."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def is_off() -> bool:
    """Whether only the cache is used."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def answers() -> bool:
    """Whether anything answers there, by the environment's proxy, if any, as for downloads."""
    try:
        urllib.request.urlopen(
            urllib.request.Request(address(), method="HEAD"), timeout=HUB_SECONDS
        ).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, HTTPException):
        return False
    return True


def check_model(model: str, role: str) -> None:
    """Checks that a model with a name of the hub is in the cache, or can be downloaded.

    Raises:
        ConfigError: there is no such model.
        SetupError: it is not in the cache, and the hub does not answer or refuses it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    if "://" in model or os.environ.get("SGLANG_USE_MODELSCOPE"):  # from elsewhere
        return
    try:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return
    except HFValidationError as error:
        url = re.fullmatch(r"[\w.-]+:\d+(?:/\S*)?", model)
        hint = f"a server is given as http://{model}" if url else MODEL_HINT
        raise ConfigError(f"{model!r} is no name of a model", role=role, hint=hint) from error
    if is_off():
        why = f"{model!r} is neither a directory here nor in the hub's cache"
        raise SetupError(f"{why}, and HF_HUB_OFFLINE is set", role=role, hint=MODEL_HINT)
    if not answers():
        why = f"{model!r} is neither a directory here nor in the hub's cache"
        hint = f"{MODEL_HINT}, or set HF_ENDPOINT"
        raise SetupError(f"{why}, and {address()} does not answer", role=role, hint=hint)
    try:
        HfApi(endpoint=address()).model_info(model, timeout=HUB_SECONDS)
    except GatedRepoError as error:
        hint = "accept its terms there and set HF_TOKEN"
        raise SetupError(f"{address()} refuses {model!r}", role=role, hint=hint) from error
    except RepositoryNotFoundError as error:
        hint = f"check the name, or set HF_TOKEN if it is private; or {MODEL_HINT}"
        raise ConfigError(f"{address()} has no model {model!r}", role=role, hint=hint) from error
    except Exception:  # noqa: BLE001 - the hub is in trouble: SGLang tries longer
        return
