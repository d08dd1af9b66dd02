"""The HTML page of runs: what is in it, and what a browser makes of it."""

import json
import re

import pytest

from lr_sglang.results.page import inert
from tests import synthetic
from tests.called import called
from tests.synthetic import Truth, write

SCRIPT = "</script><script>window.hit=1</script>"
NASTY = f"{SCRIPT}<img src=x onerror='window.hit=1'>\u2028%SCRIPT% <!-- &amp; \ud83d \x1b[1m"


def nasty(records):
    """A model, and a file of questions, that mean harm."""
    for record in records:
        record |= {
            "question": NASTY,
            "gold": NASTY,
            "answer": NASTY,
            "text": NASTY,
            "question_id": "id " + NASTY,
        }
        # The runner's standard output is strict, the installed command's is not.
        record["config"]["runtimes"]["target"]["model"] = NASTY.replace("\ud83d", "")
        for step in record["steps"]:
            step |= {
                "text": NASTY,
                "target_text": NASTY,
                "draft_texts": [NASTY] * len(step["draft_texts"]),
            }
            for verdict in step["verdicts"]:
                verdict["reason"] = NASTY
    return records


def view(folder, path, code=0):
    return called("report", folder, "--html", path, code=code)


def scripts(text):
    return dict(
        re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', text, re.S)
    )


# -- the file


def test_the_page_holds_every_answer(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 8, 1))
    assert view(folder, folder / "view.html").stderr.strip() == str(folder / "view.html")
    text = (folder / "view.html").read_text()
    hosts = set(re.findall(r"\w+://[^\s\"']+", text))
    assert hosts == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "default-src 'none'" in text
    found = scripts(text)
    index = json.loads(found.pop("index"))
    assert len(found) == len(index["records"]) == 16
    assert [g["mode"] for g in index["groups"]] == ["autoregressive", "lookahead"]
    first = json.loads(
        found[f"r{next(r['n'] for r in index['records'] if r['share'] is not None)}"]
    )
    assert len(first["steps"][0]["drafts"]) == 1 and first["steps"][0]["target"]["text"]
    assert [one["ended"] for one in first["branches"] if one["role"] == "path"][-1] == first[
        "seconds"
    ]
    fact = index["groups"][0]["facts"][0]
    assert fact[0] == "accuracy" and fact[1].endswith(" %") and fact[2].startswith("(")


@pytest.mark.parametrize(
    "text", ["</script>", "<!--<script>", "]]>", "\u2028", "\ud800", "&lt;", "%INDEX%"]
)
def test_no_text_gets_out_of_its_element(text):
    made = inert({"a": text})
    assert not set("<>&\u2028\u2029") & set(made)
    assert json.loads(made)["a"] == text.encode("utf-8", "replace").decode()


def test_a_failed_write_leaves_nothing(tmp_path):
    folder = write(tmp_path / "a", synthetic.run(Truth(), 1, 1))
    (tmp_path / "there").mkdir()
    view(folder, tmp_path / "absent" / "x.html", code=1)
    assert sorted(path.name for path in folder.iterdir()) == ["records.jsonl", "run.json"]


# -- in a browser


@pytest.fixture
def seen(visit, tmp_path):
    """The page of some records, in a browser."""

    def look(records, **options):
        view(write(tmp_path / "a", records), tmp_path / "view.html")
        page = visit(f"file://{tmp_path / 'view.html'}", **options)
        page.wait_for_selector("#detail h2", state="attached")
        return page

    return look


def test_what_a_model_wrote_stays_text(seen):
    found = seen(nasty(synthetic.run(Truth(), 2, 1)))
    assert found.evaluate("window.hit") is None
    assert found.locator("#detail img, #detail script, #list img").count() == 0
    assert SCRIPT in found.locator(".question").inner_text()
    assert "onerror" in found.locator(".step .text").first.inner_text()


def test_the_list_is_filtered_and_read_with_keys(seen):
    records = synthetic.run(Truth(), 6, 1)
    for number, record in enumerate(records):
        record["correct"] = number % 2 == 0
    found = seen(records)
    count = found.locator("#count")
    assert count.inner_text() == "12 of 12 answers"
    found.select_option("#result", "wrong")
    assert count.inner_text() == "6 of 12 answers"
    found.select_option("#result", "")
    found.keyboard.press("Escape")
    found.keyboard.press("Tab")
    found.locator("body").press("/")
    found.keyboard.type("synthetic-003")
    assert count.inner_text() == "2 of 12 answers"
    found.locator("#list button").first.focus()
    found.keyboard.press("Enter")
    first = found.evaluate("location.hash")
    found.keyboard.press("j")
    assert found.evaluate("location.hash") != first
    found.keyboard.press("k")
    assert found.evaluate("location.hash") == first


def test_a_page_says_and_explains_what_its_answers_have(seen):
    records = synthetic.run(Truth(alpha=0.5), 1, 1)
    for record in records[:1]:
        for step in record["steps"]:
            step["outcome"] = "bonus"  # as a run has it
    found = seen(records)
    for mode, said, legend in (
        ("autoregressive", "The target wrote it by itself.", "critical path:"),
        ("lookahead", "The judge: the two versions", "branches: faint agreed, "),
    ):
        record = found.locator("#list button", has_text=mode).first
        record.click()
        assert said in found.locator(".step .words").first.inner_text()
        assert found.locator(".legend").inner_text().startswith(legend)


def test_both_versions_stand_beside_each_other_and_a_branch_leads_to_its_step(seen):
    found = seen(synthetic.run(Truth(alpha=0.5), 1, 1, modes=("lookahead",)))
    step = found.locator(".step").first
    boxes = [step.locator(f".version.{role}").bounding_box() for role in ("draft", "target")]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    assert step.locator(".version[data-state=accepted], .version[data-state=kept]").count() == 1
    assert re.search(
        r"^The judge: the two versions (do not )?mean the same, after 40 ms\.",
        step.locator(".words").inner_text(),
    )
    canvas = found.locator(".timeline canvas")
    assert "Critical path" in canvas.get_attribute("aria-label")
    box = canvas.bounding_box()
    assert box["height"] == 16 + 18 * found.locator(".timeline li").evaluate_all(
        "all => all.reduce((sum, one) => sum + Number(one.style.flexGrow), 0)"
    )
    # the end of the critical path
    canvas.click(position={"x": box["width"] - 4, "y": box["height"] - 9})
    assert found.locator(".step[aria-selected=true]").count() == 1
    assert canvas.get_attribute("title")
