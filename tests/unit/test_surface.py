"""What users rely on is still there: commands, options, routes, request and record fields, metrics,
public names.

It is listed in surface.txt, one thing a line. What is new is added to the list by

    python -m tests.unit.test_surface

which removes nothing: a line that goes is a decision, made by hand and told in CHANGELOG.md.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from fastapi.routing import APIRoute

import lr_sglang
from lr_sglang import tasks
from lr_sglang.cli import cli
from lr_sglang.config import ROLES, Deployment, Limits, Lookahead, Runtime, Sampling, TokenLayer
from lr_sglang.modes import MODES
from lr_sglang.serve.app import create_app
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.settings import Service
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry
from tests.unit.test_docs import named

LIST = Path(__file__).with_name("surface.txt")
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ADD = "python -m tests.unit.test_surface"


def commands(command: click.Command, path: str = "lr-sglang") -> Iterator[str]:
    """Every command below this one, its arguments, its options by all their names, and what they
    may be.
    """
    yield f"command {path}"
    for one in command.params:
        if isinstance(one, click.Argument):
            yield f"argument {path} {one.human_readable_name}"
            continue
        for name in (*one.opts, *one.secondary_opts):
            yield f"option {path} {name}"
            if isinstance(one.type, click.Choice):
                yield from (f"option {path} {name} {choice}" for choice in one.type.choices)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


def endpoint() -> Iterator[str]:
    """Every route, and the fields of what it is sent."""
    app = create_app({}, Service(modes=("autoregressive",), verifiers=("exact",)))
    for (
        route
    ) in app.routes:  # those that the schema leaves out; the page's own files are nobody else's
        if isinstance(route, APIRoute) and not route.path.startswith("/page/"):
            yield from (f"route {method} {route.path}" for method in route.methods)
    schema = app.openapi()
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            yield f"route {method.upper()} {path}"
            body = about.get("requestBody", {}).get("content", {})
            for part in body.values():
                for field in fields(part["schema"], schema["components"]["schemas"]):
                    yield f"request field {method.upper()} {path} {field}"


def fields(schema: dict[str, Any], known: dict[str, Any], before: str = "") -> Iterator[str]:
    """The properties of a JSON schema and of what it refers to, by dotted names."""
    if "$ref" in schema:
        yield from fields(known[schema["$ref"].rpartition("/")[2]], known, before)
    for one in (*schema.get("anyOf", ()), schema.get("items", {})):
        if one:
            yield from fields(one, known, before)
    for name, one in schema.get("properties", {}).items():
        yield before + name
        yield from fields(one, known, f"{before}{name}.")


def metrics() -> Iterator[str]:
    """Every metric, with its labels."""
    for one in Metrics().registry._collector_to_names:
        yield f"metric {one._name}{{{','.join(one._labelnames)}}} {one._type}"


def python() -> Iterator[str]:
    """The names of ``lr_sglang``, their parameters, and the members of classes; not what SGLang's
    classes bring.
    """
    for name in lr_sglang.__all__:
        found = getattr(lr_sglang, name)
        yield f"python {name}"
        if not callable(found):
            continue
        given = {
            one.name for one in inspect.signature(found).parameters.values() if one.kind not in OPEN
        }
        yield from (f"python {name}({one})" for one in given if not one.startswith("_"))
        ours = [
            one for one in getattr(found, "__mro__", ()) if one.__module__.startswith("lr_sglang")
        ]
        members = {one for kind in ours for one in vars(kind)} - given
        yield from (f"python {name}.{one}" for one in members if not one.startswith("_"))


def deployment_files() -> Iterator[str]:
    """The tables of a deployment file, and their keys."""
    tables = {"": Deployment, "ROLE.": Runtime, "ROLE.token_layer.": TokenLayer}
    tables |= {"sampling.": Sampling, "lookahead.": Lookahead, "limits.": Limits}
    for table, kind in tables.items():
        yield from (f"deployment {table}{one.name}" for one in dataclasses.fields(kind))


def records() -> Iterator[str]:
    """The fields of records, by docs/metrics.md, which test_docs.py compares with records."""
    for part in ("Records", "`steps`", "`branches`", "`tokens`"):
        yield from (f"record {part.strip('`').lower()} {name}" for name in named(part))


def surface() -> set[str]:
    """All of it."""
    found = [*commands(cli), *endpoint(), *metrics(), *python(), *deployment_files(), *records()]
    for kind, names in (
        ("role", ROLES),
        ("mode", MODES),
        ("verifier", verifier_registry.NAMES),
        ("program", program_registry.names()),
        ("task", tasks.names()),
    ):
        found += [f"{kind} {name}" for name in names]
    return set(found)


def listed() -> set[str]:
    return set(LIST.read_text("utf-8").splitlines())


def test_nothing_that_users_rely_on_is_lost():
    lost = sorted(listed() - surface())
    assert not lost, "no longer there:\n" + "\n".join(lost)


def test_what_is_new_is_listed():
    new = sorted(surface() - listed())
    assert not new, f"{ADD} adds to {LIST.name}:\n" + "\n".join(new)


if __name__ == "__main__":
    LIST.write_text(
        "\n".join(sorted(surface() | (listed() if LIST.exists() else set()))) + "\n", "utf-8"
    )
