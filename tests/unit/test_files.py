"""Files of the user's, by path and name."""

from pathlib import Path

import pytest

from lr_sglang import plugin_files, tasks
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.results import collection
from lr_sglang.runtimes import deployments
from lr_sglang.serve.settings import load_keys
from lr_sglang.user_programs import program_registry
from lr_sglang.verifiers import verifier_registry

NOBODYS = "~nobody-of-this-name/a"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: plugin_files.check(f"{NOBODYS}.py"), "there is no file"),
        (lambda: program_registry.parse_program(f"{NOBODYS}.py:mine"), "there is no file"),
        (lambda: verifier_registry.parse_verifier(f"{NOBODYS}.py:Mine"), "there is no file"),
        (lambda: tasks.load(Path(f"{NOBODYS}.jsonl")), "No such file"),
        (lambda: tasks.load("pocket", file=Path(f"{NOBODYS}.jsonl")), "No such file"),
        (lambda: tasks.get(f"{NOBODYS}.py:mine"), "there is no task"),
        (lambda: collection.read_runs([NOBODYS]), "there is no such folder"),
    ],
)
def test_the_home_of_an_unknown_user_is_a_place_where_nothing_is(use, said):
    """And no bug of ours."""
    with pytest.raises((ConfigError, RecordError), match=said) as caught:
        use()
    assert "~nobody-of-this-name" in caught.value.message


def test_a_file_that_is_no_python_is_told_before_a_server_starts(tmp_path):
    file = tmp_path / "mine.py"
    for text, said in ((b"def Mine(:", "line 1"), (b"Mine = '\xff'", "mine.py")):
        file.write_bytes(text)
        for parse in (
            verifier_registry.parse_verifier,
            program_registry.parse_program,
            tasks.get,
        ):
            with pytest.raises(ConfigError, match="cannot be loaded") as caught:
                parse(f"{file}:Mine")
            assert said in caught.value.message and "\n" not in caught.value.message


def test_a_file_in_ones_own_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file.py").write_text("mine = 1")
    plugin_files.check("~/file.py")
    assert plugin_files.find("~/file.py", "mine") == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_text_files_may_have_a_byte_order_mark(encoding, line_end, tmp_path):
    """As editors and shells of Windows write them."""

    def written(name, *lines):
        path = tmp_path / name
        path.write_bytes("".join(f"{line}{line_end}" for line in lines).encode(encoding))
        return path

    deployment = written("d.toml", "# for π", "[runtimes.target]", 'model = "a/b"')
    assert deployments.load_deployment(deployment).runtimes["target"].model == "a/b"
    assert deployments.summary(deployment) == "for π"
    questions = written("q.jsonl", '{"question": "π?"}', '{"question": "b\u2028?"}')
    assert [one.question for one in tasks.load(questions)] == ["π?", "b\u2028?"]
    keys = load_keys(written("keys", "secret", "other"), {})
    assert keys.open_to("Bearer secret") and not keys.open_to("Bearer else")


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "d.toml").write_bytes("# für\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"d\.toml: this is not TOML"):
        deployments.load_deployment(tmp_path / "d.toml")


# -- FILE.py:NAME[:ARGUMENT]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.py:V", ("a.py", "V", None)),
        ("a.py:V:", ("a.py", "V", "")),
        ("a.py:V:0.5:x", ("a.py", "V", "0.5:x")),
        ("a.py:V:b.py:x", ("a.py", "V", "b.py:x")),
        ("a.py:V:two\nlines", ("a.py", "V", "two\nlines")),
        ("/in.py:x/a.py:V", ("/in.py:x/a.py", "V", None)),
        ("a.py", ("", "a.py", None)),
        (".py:V", ("", ".py", "V")),
        ("a.py:no name", ("", "a.py", "no name")),
        ("judge:0.5", ("", "judge", "0.5")),
        ("cascade:a:1,b", ("", "cascade", "a:1,b")),
        ("judge:", ("", "judge", "")),
        ("judge", ("", "judge", None)),
    ],
)
def test_the_first_file_and_name_are_meant(text, expected):
    assert plugin_files.named(text) == expected


def test_an_argument_may_look_like_the_whole(tmp_path):
    file = tmp_path / "file.py"
    file.write_text("mine = 1")
    chosen = verifier_registry.parse_verifier(f"{file}:mine:other.py:x")
    assert (chosen.file, chosen.name, chosen.argument) == (str(file), "mine", "other.py:x")
    with pytest.raises(ConfigError, match="there is no task"):
        tasks.get(f"{file}:mine:other.py:x")


@pytest.mark.parametrize(
    ("parse", "text", "near", "far"),
    [
        (program_registry.parse_program, "lokahead:samples=2", "lookahead", "FILE.py:FUNCTION"),
        (verifier_registry.parse_verifier, "likelyhood:-0.3", "likelihood", "FILE.py:CLASS"),
    ],
)
def test_a_name_that_nobody_has_is_answered_with_the_nearest(parse, text, near, far):
    with pytest.raises(ConfigError, match=f"is called {text!r}") as caught:
        parse(text)
    assert caught.value.hint == f"did you mean {near}?"
    assert caught.value.__notes__ == [f"Hint: did you mean {near}?"]  # of a traceback
    with pytest.raises(ConfigError) as caught:
        parse("qqqq:1")
    assert (
        caught.value.hint.startswith("one of ")
        and near in caught.value.hint
        and far in caught.value.hint
    )
