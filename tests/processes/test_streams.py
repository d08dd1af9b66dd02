"""A command whose standard streams, locale or files are unusual: it answers, or says why not."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT, records

QUESTION = "Was kostet das? é 😀"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("LC_", "LANG", "PYTHON"))
} | {"PYTHONPATH": str(ROOT)}


def command(redirected, *words, folder, code=0, **variables):
    """A scripted ``lr-sglang`` whose streams a shell redirects."""
    line = f'exec "$@" {redirected}'
    program = [sys.executable, "-m", "tests.scripted_cli", *words]
    done = subprocess.run(
        ["bash", "-c", line, "bash", *program],
        cwd=folder,
        env=ENVIRONMENT | variables,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii:strict"},
    ],
    ids=str,
)
def test_what_other_programs_read_is_utf_8_in_every_locale(tmp_path, variables):
    done = command("", "run", QUESTION, "--json", folder=tmp_path, **variables)
    assert json.loads(done.stdout.decode("utf-8"))["question"] == QUESTION
    assert json.loads(done.stdout) == records(tmp_path / "runs")[0]


@pytest.mark.parametrize(
    ("redirected", "question", "code", "said"),
    [
        ("<&-", "-", 2, b"Error: the question is empty: standard input is closed"),
        (">&-", QUESTION, 0, b"Warning: standard output is closed"),
        ("2>&-", QUESTION, 0, b""),
        ("2>/dev/full", QUESTION, 0, b""),
        ("2</dev/null", QUESTION, 0, b""),
        (">/dev/full", QUESTION, 1, b"Error: standard output cannot be written: No space left"),
    ],
)
def test_a_stream_that_is_closed_or_full_loses_no_answer(
    tmp_path, redirected, question, code, said
):
    form = ("--json",) if "full" in redirected else ()
    done = command(redirected, "run", question, *form, folder=tmp_path, code=code)
    assert said in done.stderr and b"Traceback" not in done.stderr
    assert [one["question"] for one in records(tmp_path / "runs")] == [QUESTION] * (code < 2)
    assert (b"boxed{17}" in done.stdout) is (not code and redirected[0] != ">")


def test_an_endpoint_that_cannot_say_where_it_listens_ends_by_a_named_error(tmp_path):
    plain = [f"-oruntimes.{role}.token_layer=none" for role in ("target", "draft")]
    asked = ("serve", "--port", "0", "--mode", "lossless", *plain)
    done = command(">/dev/full", *asked, folder=tmp_path, code=1)
    said = b"Error: standard output cannot be written: No space left on device\n"
    assert done.stderr.endswith(said) and b"Traceback" not in done.stderr


def test_names_that_are_no_text_are_names(tmp_path):
    name = os.fsdecode(b"q\xff")
    (tmp_path / f"{name}.jsonl").write_text('{"question": "how many?", "answer": 17}\n')
    asked = ("run", "--input", f"{name}.jsonl", "--output", name)
    command("", *asked, folder=tmp_path)
    command("", *asked, "--resume", folder=tmp_path)
    assert len(records(tmp_path / name)) == 1
    command("", "report", name, "--grade", "--json", folder=tmp_path)
