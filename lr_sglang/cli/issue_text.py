"""``lr-sglang doctor --report``: what an issue needs to say, as Markdown, with secrets taken out."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lr_sglang.cli.doctor_checks import Findings
from lr_sglang.results import machine

ALSO = ("uvloop", "tokenizers", "triton", "numpy", "click", "fastapi", "uvicorn", "math-verify", "sglang-router")
# Variables that change what we or the servers do.
_SETTINGS = re.compile(
    r"^(LR_SGLANG_|SGLANG_|SGL_|HF_|CUDA_|NCCL_|TORCH|OMP_|XDG_STATE_HOME$|CXX$|LD_PRELOAD$|NO_COLOR$|PYTHONPATH$)"
)
# MAX_TOKENS and TOKEN_LAYER are none.
_SECRET = re.compile(r"KEY|TOKEN$|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.I)
_LOOKS_SECRET = re.compile(r"\b(?:hf|sk|ghp|gho|pk|xox[a-z])[-_][\w-]{8,}|\bBearer\s+\S+|\beyJ[\w-]{10,}\.[\w.-]+")
# A password may hold a comma; what follows it ends at one.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^\s/?#]*@)?[^\s,;'\"]*", re.I)
_HIDDEN = "(set, not shown)"


def text(found: Findings, variables: Mapping[str, str] = os.environ) -> str:
    """The whole text.

    Args:
        found: what ``doctor`` found.
        variables: the environment; only names that change what we do are shown.
    """
    about = machine.machine()
    lines = ["### What happened", "", "(what you did, what you saw, what you expected)", "", "### Versions", ""]
    lines += [f"- {name}: {version or 'not installed'}" for name, version in _versions()]
    gpus = ", ".join(map(str, about["gpus"])) or "none"
    lines += ["", "### Machine", ""]
    lines += [f"- system: {about['system']}", f"- CPU: {about['cpu']}, {about['cores']} cores", f"- GPUs: {gpus}"]
    lines += ["", "### Settings", ""]
    lines += [f"- `{name}={value}`" for name, value in settings(variables)] or ["- none in the environment"]
    lines += ["", "### lr-sglang doctor", "", "```"]
    lines += [f"{check.status:8}{check.name}: {check.found}" for check in found.checks]
    lines += [*found.verdict, "```"]
    return clean("\n".join(lines)) + "\n"


def settings(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that change what we do; of secrets only that they are set."""
    for name, value in sorted(variables.items()):
        if _SETTINGS.match(name):
            yield name, _HIDDEN if _SECRET.search(name) and value else " ".join(clean(value).split())


def clean(value: str) -> str:
    """The text without what identifies its user: keys, hosts' credentials and queries, the home directory."""
    value = _URL.sub(lambda hit: hit["scheme"] + _host(hit[0][len(hit["scheme"]) :]), value)
    value = _LOOKS_SECRET.sub("(secret)", value)
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?=/|\b)", "~", value) if len(home) > 1 else value


def _host(rest: str) -> str:
    """An address without user, password, query and fragment."""
    authority, slash, path = rest.partition("/")
    return authority.rpartition("@")[2].split("?")[0].split("#")[0] + slash + re.split(r"[?#]", path)[0]


def _versions() -> Iterator[tuple[str, str]]:
    yield from machine.versions().items()
    for name in ALSO:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, ""
    yield "installed as", _way()


def _way() -> str:
    """How lr-sglang is installed: from a checkout or from a package."""
    here = Path(__file__).parents[2]
    kind = "a checkout" if (here / "pyproject.toml").is_file() else "a package"
    virtual = "a virtual environment" if sys.prefix != sys.base_prefix else "the system's Python"
    return f"{kind}, in {virtual}"
