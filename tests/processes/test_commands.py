"""A command from its start: what it imports, and how soon it answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
            "urllib3",
            "httpx",
            "numpy",
            "scipy",
            "uvicorn",
        },
    ),
    "plan": (
        CLI.format(["plan", "--alpha", ".6", "--c1", ".1"]),
        {"torch", "sglang", "transformers", "numpy", "matplotlib", "urllib3"},
    ),
    "doctor": (
        "from lr_sglang.cli import doctor; doctor.examine()\n"
        "if doctor.gpus.visible(): raise SystemExit\n",
        {"torch", "sglang", "transformers"},
    ),
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_command_imports_nothing_heavy(name):
    code, heavy = LIGHT[name]
    code += f"import sys\nassert not (found := {heavy} & sys.modules.keys()), found"
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=env)


def test_the_page_is_not_stale():
    """In a process of its own: click keeps the help option of whoever asked first, other
    tests too.
    """
    command = [sys.executable, ROOT / "scripts" / "cli_page.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_on_a_release_without_what_is_used_gets_that_said():
    code = (
        "import sys, lr_sglang.errors as errors\n"
        "from lr_sglang.sglang_api.light_import import leave_torch_out\n"
        "leave_torch_out()\n"
        "sys.modules['sglang.lang.choices'] = None\n"
        "try: import lr_sglang.frontend.backend\n"
        "except errors.SetupError as error: print(error, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SGLang's frontend language cannot be imported: ")
    assert "pip install 'sglang==0.5.23'" in done.stdout
