"""A package of somebody else's adds one of each kind: a file and an entry point each, and nothing
of ours changes.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.serving import ROOT, simulating

FILES = {
    "rulings.py": """
        from lr_sglang.steps.tree import Verdict

        class SameInitial:
            name = "same-initial"

            def verify(self, inquiry):
                alike = inquiry.pair.target.text[:1] == inquiry.pair.draft.text[:1]
                return Verdict(alike, self.name, "by their first letters")
        """,
    "questions.py": """
        from lr_sglang.tasks import Question, Task

        def long(text, question):
            return len(text) > 20

        TASK = Task("letters", "long", load=lambda: [Question("one", "Write!", None)], suffix="", grader=long)
        """,
    "drafts.py": """
        import sglang as sgl
        import lr_sglang as lr

        @sgl.function
        def redraft(s, messages, words="again"):
            lr.converse(s, messages)
            s += lr.lookahead("first", max_tokens=60)
            s += sgl.assistant_end() + sgl.user(words) + sgl.assistant_begin()
            s += lr.lookahead("answer", max_tokens=60)
        """,
    "layers.py": """
        from lr_sglang.runtimes.launching.token_layer import Algorithm

        GUESS = Algorithm(
            "GUESS", lambda layer: {"speculative-num-draft-tokens": layer.tokens}, "none", on_cpu=True, built_in=False
        )
        """,
    "../theirs-1.0.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: theirs
        Version: 1.0
        """,
    "../theirs-1.0.dist-info/entry_points.txt": """
        [lr_sglang.verifiers]
        same-initial = theirs.rulings:SameInitial
        [lr_sglang.programs]
        redraft = theirs.drafts:redraft
        [lr_sglang.token_layers]
        guess = theirs.layers:GUESS
        """,
    "theirs.toml": """
        [runtimes.target]
        model = "pocket:target"
        token_layer = { algorithm = "guess", tokens = 3 }
        """,
}


@pytest.fixture
def call(tmp_path):
    """The command line where the package is installed."""
    for name, text in FILES.items():
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.strip("\n").splitlines()) + "\n")

    def run(*arguments):
        command = [sys.executable, ROOT / "cli.py", *map(str, arguments)]
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_verifier_a_task_and_a_program_of_another_package(call, tmp_path):
    with simulating(
        tmp_path, "--steps", 6, "--step-seconds", 0.01, "--judge-seconds", 0
    ) as runtimes:
        attach = [word for role, url in runtimes.urls.items() for word in (f"--{role}", url)]
        names = (
            "--task",
            f"{tmp_path}/theirs/questions.py:TASK",
            "--verifier",
            "same-initial",
            "--program",
            "redraft:words=shorter",
        )
        call("run", *names, *attach, "--output", "out")
    (record,) = [
        json.loads(line)
        for line in (tmp_path / "out" / "records.jsonl").read_text("utf-8").splitlines()
    ]
    assert record["error"] is None and record["question_id"] == "one" and record["correct"]
    assert record["config"]["program"] == "redraft:words=shorter"
    verdicts = [verdict for step in record["steps"] for verdict in step["verdicts"] if verdict]
    assert "same-initial" in {verdict["by"] for verdict in verdicts}


def test_a_token_layers_algorithm_of_another_package(call):
    printed = call("launch", "theirs/theirs.toml", "--mode", "sd", "--print")
    assert (
        "--speculative-algorithm GUESS" in printed and "--speculative-num-draft-tokens 3" in printed
    )
