"""The token ids that end a sequence, from the files that SGLang reads: a model's two
configurations, its tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Tokens that SGLang treats as an end without any configuration (its
# ``attach_additional_stop_token_ids``).
ALSO = ("<|eom_id|>", "<|content_model_end_sampling|>")
_FILES = ("config.json", "generation_config.json")


def of_model(path: str) -> frozenset[int]:
    """The end ids in a model's ``config.json`` and ``generation_config.json``; empty if there are
    no such files.

    Args:
        path: a folder, or a hub name.
    """
    return frozenset().union(*(_ids(_document(path, name).get("eos_token_id")) for name in _FILES))


def of_server(info: Mapping[str, Any]) -> frozenset[int]:
    """The end ids of a server, from its ``/server_info``: its options, and its model's files if
    they are here.
    """
    model = str(info.get("model_path") or "")
    found = of_model(model) if model and Path(model).is_dir() else frozenset()
    for option, key in (
        ("json_model_override_args", "eos_token_id"),
        ("preferred_sampling_params", "stop_token_ids"),
    ):
        found |= _ids(_object(info.get(option)).get(key))
    return found


def _document(path: str, name: str) -> dict[str, Any]:
    if Path(path).is_dir():
        file: str | None = str(Path(path, name))
    else:
        from transformers.utils import cached_file

        quietly = ("missing_entries", "gated_repo", "connection_errors")
        file = cached_file(
            path, name, **{f"_raise_exceptions_for_{what}": False for what in quietly}
        )
    try:
        return _object(Path(file).read_text("utf-8")) if file else {}
    except OSError:
        return {}


def _object(given: Any) -> dict[str, Any]:
    with suppress(ValueError):
        given = json.loads(given) if isinstance(given, str) else given
    return given if isinstance(given, dict) else {}


def _ids(given: Any) -> frozenset[int]:
    each = given if isinstance(given, list | tuple) else [given]
    return frozenset(one for one in each if isinstance(one, int) and not isinstance(one, bool))
