"""A command from its start: what it imports, and how soon it answers."""

import json

import pytest

from lr_sglang.api.configuration import Plan
from lr_sglang.config import Lookahead
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.runtimes.placement.models import locate
from tests.called import python

CLI = (
    "from click.testing import CliRunner; from lr_sglang.cli import cli\n"
    "assert not CliRunner().invoke(cli, {}).exit_code\n"
)
# What it does, and what it must not import; where nvidia-smi answers, or there is no GPU.
LIGHT = {
    "help": (
        CLI.format(["run", "--help"]),
        {
            "torch",
            "sglang",
            "transformers",
            "rich",
            "aiohttp",
            "httpx",
            "numpy",
            "scipy",
            "uvicorn",
        },
    ),
    "commands": (
        "from lr_sglang.cli import cli\n"
        "assert all(cli.get_command(None, name) for name in cli.list_commands(None))\n",
        {"torch", "sglang", "transformers"},
    ),
    "plan": (
        CLI.format(["plan", "--alpha", ".6", "--c1", ".1"]),
        {"torch", "sglang", "transformers", "numpy", "matplotlib", "aiohttp"},
    ),
    "launch": ("import lr_sglang.runtimes.launching.fleet\n", {"torch", "scipy"}),
    "doctor": (
        "from lr_sglang.doctor import checks; checks.check_machine()\n"
        "if checks.gpus.visible(): raise SystemExit\n",
        {"torch", "sglang", "transformers"},
    ),
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_command_imports_nothing_heavy(name):
    code, heavy = LIGHT[name]
    code += f"import sys\nassert not (found := {heavy} & sys.modules.keys()), found"
    python("-c", code, HF_HUB_OFFLINE="1")


def test_the_page_is_not_stale():
    """In a process of its own: click keeps the help option of whoever asked first, other
    tests too.
    """
    python("scripts/cli_page.py", "--check")


def test_a_program_on_a_release_without_what_is_used_gets_that_said():
    code = (
        "import sys, lr_sglang.errors as errors\n"
        "from lr_sglang.sglang_api.light_import import leave_torch_out\n"
        "leave_torch_out()\n"
        "sys.modules['sglang.lang.choices'] = None\n"
        "try: import lr_sglang.frontend.backend\n"
        "except errors.SetupError as error: print(error, error.hint)"
    )
    done = python("-c", code)
    assert done.stdout.startswith("SGLang's frontend language cannot be imported: ")
    assert "pip install 'sglang==0.5.23'" in done.stdout


# -- without torch


TEXTS = ["Was kostet das? 12 + 7 = 19\n\n", "<think>\nnaïve 😀 — done\n\n", ""]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many\n\n are 2 and 2?"},
]

LEAN = """
import json, sys
from lr_sglang.sglang_api.light_import import leave_torch_out
leave_torch_out()
from lr_sglang.runtimes import connect
from lr_sglang.api import runner
from lr_sglang.verifiers import verifier_registry
from lr_sglang.engine.tokenizer import load_tokenizer
path, texts, messages = json.load(sys.stdin)
known = load_tokenizer(path)
ids = [known.encode(text) for text in texts]
whole = [known.chat(messages, True).ids, [known.decode(one) for one in ids], known.vocabulary]
heavy = [name for name in ("torch", "torchvision", "sklearn") if name in sys.modules]
# who needs this module gets the real one
print(json.dumps([ids, *whole, heavy, "sglang.srt.utils.hf_transformers_patches" in sys.modules]))
"""


def test_tokenizers_are_the_same_without_torch():
    path = locate("pocket:target")
    done = python("-c", LEAN, given=json.dumps([path, TEXTS, MESSAGES]))
    ids, prompt, texts, vocabulary, heavy, stood_in = json.loads(done.stdout)
    tokenizer = load_tokenizer(path)
    assert [tuple(one) for one in ids] == [tokenizer.encode(text) for text in TEXTS]
    assert (
        texts == [tokenizer.decode(one) for one in ids]
        and tuple(prompt) == tokenizer.chat(MESSAGES, True).ids
    )
    assert vocabulary == tokenizer.vocabulary
    assert heavy == [] and not stood_in
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("verifier", "others", "program", "lean"),
    [
        ("judge", (), "", True),
        ("exact", ("score", "likelihood"), "best_of_n:samples=2", True),
        ("embedding", (), "", False),
        ("judge", ("embedding",), "", False),
        ("cascade:likelihood,judge", (), "", True),
        ("cascade:embedding,judge", (), "", False),
        ("FILE", (), "", False),
        ("judge", (), "FILE", False),
    ],
)
def test_it_is_for_processes_whose_code_is_ours(verifier, others, program, lean, tmp_path):
    (tmp_path / "mine.py").write_text("class Mine: ...")
    own = f"{tmp_path}/mine.py:Mine"
    verifier, program = (name.replace("FILE", own) for name in (verifier, program))
    plan = Plan(program=program).with_settings(lookahead=Lookahead(verifier=verifier))
    assert plan.lean(*others) is lean


def test_sglang_on_a_cpu_is_inert_without_the_switch():
    python(
        "-c",
        "import sys; from lr_sglang import cpu; cpu.platform(); cpu.plugin();"
        "assert not {'torch', 'sglang', 'lr_sglang.cpu.operators'} & set(sys.modules)\n"
        "try: import common_ops\n"
        "except ImportError as error: assert 'SGLANG_USE_CPU_ENGINE=1' in str(error)\n"
        "else: raise SystemExit('common_ops loaded')",
    )
