"""What of lr-sglang is installed, and what it can reach, for ``lr-sglang doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException

from lr_sglang import pocket
from lr_sglang.cli.machine_checks import Check, needed
from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import language, need, release, server

HUB_SECONDS = 3.0
PACKAGES = ("torch", "transformers", "flashinfer-python", "sglang-kernel")
INSTALL = "pip install -c constraints.txt . in a checkout of lr-sglang"


def sglang() -> Iterator[Check]:
    """Whether the installed SGLang was tested, and has what we need of its insides."""
    found = release.version()
    if not found:
        yield Check("sglang", "missing", "not installed", INSTALL)
        return
    try:
        need.check((*language.NEEDS, *server.NEEDS))
    except SetupError as error:
        yield Check("sglang", "missing", error.message, error.hint)
    else:
        tested = release.is_tested(found)
        yield Check("sglang", "ok" if tested else "note", release.describe(found), "" if tested else INSTALL)


def packages() -> Iterator[Check]:
    """Versions, against those that SGLang asks for."""
    pins = {**_pins("sglang"), **_pins("lr-sglang")}
    for name in PACKAGES:
        wanted = pins.get(name, "")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "not installed", INSTALL)
            continue
        if wanted and found.partition("+")[0] != wanted:
            yield Check(name, "note", f"{found}; tested with {wanted}", INSTALL)
        else:
            yield Check(name, "ok", found)


def _pins(package: str) -> dict[str, str]:
    """The exact versions that a package asks for."""
    try:
        asked = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)(?:\[.*?\])? *==([\w.]+)", line) for line in asked if "extra ==" not in line)
    return {hit[1].lower().replace("_", "-"): hit[2] for hit in found if hit}


def pack() -> Check:
    """What SGLang finds of us on a CPU."""
    groups = ("sglang.srt.platforms", "sglang.srt.plugins")
    lacking = [group for group in groups if not importlib.metadata.entry_points(group=group, name="lr_sglang_cpu")]
    lacking += ["common_ops"] if importlib.util.find_spec("common_ops") is None else []
    get = "pip install -e . in the checkout: being on the path is not enough"
    return needed(
        "CPU pack", not lacking, f"not found by SGLang: {', '.join(lacking)}" if lacking else "installed", get
    )


def pocket_models() -> Check:
    """Whether their weights came along."""
    lacking = [role for role in pocket.ROLES if not list(pocket.weights(role).glob("*.safetensors"))]
    found = f"without weights: {', '.join(lacking)}" if lacking else "target, draft, judge"
    return needed("pocket models", not lacking, found, "install from a complete checkout, or make pocket (hours)")


def hub() -> Check:
    """Whether models can be fetched; paths and the pocket models need no hub."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Check("model hub", "note", "offline mode (HF_HUB_OFFLINE)", "models by their path, or from the cache")
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    reached: list[bool] = []

    def ask() -> None:
        try:  # by way of the proxy, where the environment names one, as models are fetched
            opener = urllib.request.build_opener()  # urlopen's own knows the proxies of when it was first used
            opener.open(urllib.request.Request(address, method="HEAD"), timeout=HUB_SECONDS).close()
            reached.append(True)
        except urllib.error.HTTPError:
            reached.append(True)
        except (OSError, ValueError, HTTPException):
            reached.append(False)

    # In a thread: looking an unreachable name up can take longer than any timeout of a request.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    if reached and reached[0]:
        return Check("model hub", "ok", address)
    return Check("model hub", "note", f"{address} does not answer", "give models by their path, or set HF_ENDPOINT")
