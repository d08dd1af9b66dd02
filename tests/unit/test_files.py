"""A file of the user's is read before it is run."""

import pytest

from lr_sglang import catalog, files, verifier_names
from lr_sglang.errors import ConfigError

HAS_IT = [
    "def mine(s): ...",
    "async def mine(s): ...",
    "class mine: ...",
    "mine = 1",
    "mine: int = 1",
    "a, (b, mine) = 1, (2, 3)",
    "from somewhere import other as mine",
    "from somewhere import *",
    "if True:\n    mine = 1",
    "try:\n    from a import mine\nexcept ImportError:\n    def mine(): ...",
    "for mine in (1, 2): ...",
    "globals()['mi' + 'ne'] = 1",
    "def __getattr__(name): return 1",
]


@pytest.mark.parametrize("source", HAS_IT)
def test_what_a_file_has_is_found(tmp_path, source):
    file = tmp_path / "mine.py"
    file.write_text(source)
    files.check(file, "mine")
    assert catalog.parse(f"{file}:mine").file == verifier_names.parse(f"{file}:mine").file == str(file)


@pytest.mark.parametrize(
    ("source", "said", "hint"),
    [
        ("def main(s): ...", "has no 'mine'", "did you mean main?"),
        ("def solve():\n    mine = 1\nimport os\n_x = 1", "has no 'mine'", "it has solve"),
        ("", "has no 'mine'", ""),
        ("def mine(:\n", "line 1: it cannot be read as Python", ""),
        ("x = '\0'", "cannot be read as Python", ""),
        (b"\xff\xfe = 1", "cannot be read as Python", ""),
    ],
)
def test_what_it_has_not_is_told_before_anything_is_run(tmp_path, source, said, hint):
    file = tmp_path / "file.py"
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    for parse in (catalog.parse, verifier_names.parse):
        with pytest.raises(ConfigError, match=said) as caught:
            parse(f"{file}:mine")
        assert caught.value.hint == hint


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match=r"there is no file none\.py"):
        files.check("none.py", "mine")
