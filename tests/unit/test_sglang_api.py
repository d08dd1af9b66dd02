"""What is needed of SGLang's insides: the installed release has it, and what it lacks is named."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lr_sglang.cpu import hooks
from lr_sglang.errors import SetupError
from lr_sglang.runtimes.launching import platforms
from lr_sglang.sglang_api import language, need, release, server

NEEDS = [one for one in (*language.NEEDS, *server.NEEDS) if one.applies()]


def test_the_installed_sglang_is_tested_and_has_everything():
    assert release.is_tested(release.version())
    need.check(NEEDS)


def test_a_name_is_asked_for_once():
    names = [one.name for one in (*language.NEEDS, *server.NEEDS)]
    assert sorted(set(names)) == sorted(names)
    assert all(one.why for one in NEEDS)


def definition(one: need.Need) -> ast.AST | None:
    """The statement that a need is about; None for a module."""
    path, rest = need._module(one.name)
    body, found = need.parsed(path).body, None
    for part in rest:
        found = need._defined(body, part)
        body = getattr(found, "body", [])
    return found


@contextmanager
def changed(*places: tuple[object, str, object]) -> Iterator[None]:
    """Attributes of the parsed source, and back again."""
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    for place, name, value in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def renamed(node: ast.AST, name: str) -> list[tuple[object, str, object]]:
    """Everywhere in a statement where it binds the name."""
    places: list[tuple[object, str, object]] = []
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and inner.name == name:
            places.append((inner, "name", "gone"))
        elif isinstance(inner, ast.Attribute) and inner.attr == name:
            places.append((inner, "attr", "gone"))
        elif isinstance(inner, ast.Name) and inner.id == name:
            places.append((inner, "id", "gone"))
        elif isinstance(inner, ast.alias) and (inner.asname or inner.name) == name:
            places.append((inner, "asname", "gone"))
    return places


def breakages(one: need.Need) -> Iterator[tuple[str, list[tuple[object, str, object]]]]:
    """Every way to break it, with what the error must name."""
    node = definition(one)
    if node is None:
        return
    yield one.name, renamed(node, one.name.rpartition(".")[2])
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        for name in one.takes.split():
            yield (
                one.name,
                [
                    (argument, "arg", "another")
                    for argument in arguments.args
                    if argument.arg == name
                ],
            )
        if one.closed:
            more = [ast.arg("more"), *arguments.kwonlyargs]
            none = [None, *arguments.kw_defaults]
            yield one.name, [(arguments, "kwonlyargs", more), (arguments, "kw_defaults", none)]
    for name in one.fields.split():
        yield f"{one.name}.{name}", renamed(node, name)
    for name in one.calls:
        calls = [
            call
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and need.callee(call) == name
        ]
        yield f"{one.name}.{name}", [(call, "args", call.args[1:]) for call in calls]


@pytest.mark.parametrize("one", NEEDS, ids=lambda one: one.name)
def test_whatever_is_broken_is_named(one, monkeypatch):
    """Its name removed, its signature another, a field or a call missing: each in turn."""
    need.check([one])
    broken = 0
    for says, places in breakages(one):
        assert places, f"{says}: nothing to break"
        with changed(*places), pytest.raises(SetupError) as raised:
            need.check([one])
        assert f"this SGLang ({release.version()}) has no {says}" in str(raised.value)
        assert "tested with 0.5.16 and 0.5.23" in str(raised.value)
        assert one.why in raised.value.detail and raised.value.hint
        broken += 1
    if not broken:  # a module
        monkeypatch.setattr(need, "_module", lambda name: (None, []))
        with pytest.raises(SetupError, match=one.name):
            need.check([one])
    else:
        need.check([one])  # whole again


# ------------------------------------------------------- when it is asked


@pytest.fixture
def untested(monkeypatch):
    """A release that is not tested and lacks something."""
    monkeypatch.setattr(release, "version", lambda: "0.5.24rc1")
    monkeypatch.setattr(
        server, "NEEDS", (need.Need("sglang.srt.gone", "stands for what is needed"),)
    )
    monkeypatch.setattr(hooks.server, "NEEDS", server.NEEDS)


def test_an_untested_release_is_asked_before_a_server_starts(untested):
    with pytest.raises(
        SetupError, match=r"this SGLang \(0\.5\.24rc1\) has no sglang\.srt\.gone; tested with"
    ):
        platforms.platform("cpu", "pocket:draft")


def test_a_server_that_somebody_else_starts_ends_with_the_same(untested):
    """SGLang logs an exception of a plugin and goes on without it."""
    with pytest.raises(SystemExit, match=r"has no sglang\.srt\.gone"):
        hooks.install()


def test_sglang_is_not_installed(monkeypatch):
    monkeypatch.setattr(release, "version", lambda: "")
    with pytest.raises(SetupError, match="SGLang is not installed"):
        need.check(NEEDS)


@pytest.mark.parametrize(
    ("installed", "tested", "said"),
    [
        ("0.5.23", True, "0.5.23 (tested)"),
        ("0.5.16+cu130", True, "0.5.16+cu130 (tested)"),
        ("0.5.24rc1", False, "0.5.24rc1 (not tested; tested: 0.5.16, 0.5.23)"),
        ("", False, "not installed"),
    ],
)
def test_a_release_is_said_with_whether_it_was_tested(installed, tested, said):
    assert release.is_tested(installed) is tested and release.describe(installed) == said


def test_mends_are_off_where_sglang_has_them():
    old, new = ([one for one in server.NEEDS if one.applies(version)] for version in release.TESTED)
    mends = (server.BUILD, server.GRAMMAR, server.AMX, *server.MASKS)
    assert all(mend in old and mend not in new for mend in mends)
    assert server.PLATFORM in new and server.PLATFORM not in old
    assert server.PLATFORM.applies("0.5.24rc1") and not server.BUILD.applies("0.5.17")
