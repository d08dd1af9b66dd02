"""A hook of MkDocs: pages link to files of the repository, and the site takes these files along.

On a code host ``../programs/lookahead.py`` is a file beside ``docs/``. A site has nothing outside
of ``docs/``, so each linked file is copied into it under ``source/``; a folder becomes a page that
lists its files.
"""

import re
from pathlib import Path
from posixpath import normpath, relpath

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)(#[^)\s]*)?\)")
IGNORED = {"__pycache__"}


def _linked(text: str, page: str) -> dict[str, str]:
    """Link -> path in the repository, for links to existing files outside of ``docs/``."""
    found = {}
    for hit in LINK.finditer(text):
        path = normpath(f"docs/{page}/../{hit[2]}")
        if not path.startswith(("docs/", "../")) and (ROOT / path).exists():
            found[hit[2]] = path
    return found


def _text_name(path: str) -> str:
    """The name of a copy: .txt, which browsers show and MkDocs, unlike Markdown, does not take for
    a page.
    """
    return f"source/{path}.txt"


def _add(files: Files, config, path: str) -> None:
    if (ROOT / path).is_dir():
        inside = sorted(
            one for one in (ROOT / path).iterdir() if one.is_file() and one.name not in IGNORED
        )
        for one in inside:
            _add(files, config, f"{path}/{one.name}")
        lines = [f"# {path}\n", *(f"- [{one.name}]({one.name}.txt)" for one in inside)]
        _generate(files, config, f"source/{path}/index.md", "\n".join(lines) + "\n")
    else:
        _generate(files, config, _text_name(path), (ROOT / path).read_bytes())


def _generate(files: Files, config, uri: str, content: str | bytes) -> None:
    if files.get_file_from_path(uri) is None:
        file = File.generated(config, uri, content=content)
        if uri.endswith(".md"):
            file.inclusion = file.inclusion.NOT_IN_NAV
        files.append(file)


def on_files(files: Files, config) -> Files:
    """Adds copies of the linked files."""
    pages = [file for file in files.documentation_pages() if not file.src_uri.startswith("source/")]
    for page in pages:
        for path in _linked(page.content_string, page.src_uri).values():
            _add(files, config, path)
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Points the links at the copies."""
    targets = _linked(markdown, page.file.src_uri)

    def moved(hit: re.Match[str]) -> str:
        path = targets.get(hit[2])
        if path is None:
            return hit[0]
        uri = f"source/{path}/index.md" if (ROOT / path).is_dir() else _text_name(path)
        return f"{hit[1]}{relpath(uri, Path(page.file.src_uri).parent.as_posix())})"

    return LINK.sub(moved, markdown)
