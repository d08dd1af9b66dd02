"""A hook of MkDocs: formulas become pictures when the site is built, drawn by matplotlib.

The usual way is a script that every page loads from another site. Here pages load nothing and run
nothing for formulas.
"""

import html
import io
import re

from matplotlib import rc_context
from matplotlib.mathtext import math_to_image

# The HTML that pymdownx.arithmatex makes of $...$ and of ```math.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.S)
# TeX that matplotlib lacks or has under another name.
RENAMED = {"tfrac": r"\frac", "ge": r"\geq", "le": r"\leq", "ne": r"\neq", "to": r"\rightarrow"}
_NAMED = re.compile(rf"\\({'|'.join(RENAMED)})(?![a-zA-Z])")
STYLE = {"mathtext.fontset": "cm", "svg.fonttype": "path", "svg.hashsalt": "lr-sglang"}
SIZE = 12.0  # points; the pages' text is as large


def _lines(tex: str) -> list[str]:
    """One formula a line: matplotlib has no cases, so each becomes a formula of its own."""
    found = CASES.search(tex)
    if not found:
        return [tex]
    rows = re.split(r"\\\\(?:\[\w+\])?", found[1])
    return [
        tex[: found.start()] + row.replace("&", r"\quad\mathrm{if}\;\;")
        for row in rows
        if row.strip()
    ]


def _drawn(tex: str, inline: bool) -> str:
    tex = _NAMED.sub(lambda hit: RENAMED[hit[1]] + " ", tex).replace("\\!", "").replace("\n", " ")
    if not inline:
        tex = tex.replace(r"\frac", r"\dfrac")
    picture = io.BytesIO()
    with rc_context({**STYLE, "font.size": SIZE}):
        depth = math_to_image(f"${tex.strip()}$", picture, format="svg", dpi=72)
    svg = picture.getvalue().decode()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>",
        "",
        svg,
        flags=re.S,
    )
    # In the page's colour, without a white background.
    svg = re.sub(r'<g id="patch_1">.*?</g>', "", svg, count=1, flags=re.S)
    svg = re.sub(r'style="fill: #000000"|id="(?:figure|text)_1"', "", svg)
    place = (
        f"vertical-align:-{depth:.2f}pt"
        if inline
        else "display:block;margin:.6em auto;max-width:100%"
    )
    said = html.escape(tex.strip())
    return svg.replace(
        "<svg ", f'<svg fill="currentColor" role="img" aria-label="{said}" style="{place}" ', 1
    )


def on_page_content(content: str, page, config, files) -> str:
    """Draws the formulas of a page.

    Raises:
        ValueError: matplotlib cannot draw one; the build fails and names it.
    """

    def drawn(hit: re.Match[str]) -> str:
        inline = hit[1] == "span"
        try:
            return "".join(_drawn(one, inline) for one in _lines(html.unescape(hit[2])))
        except ValueError as error:
            raise ValueError(f"{page.file.src_uri}: {hit[2]}\n{error}") from error

    return FORMULA.sub(drawn, content)
