"""The endpoint's page in a real browser (Debian's Chromium, headless): over replayed events, and
over the endpoint.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from lr_sglang.serve.app import create_app
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.server import EndpointServer
from lr_sglang.serve.settings import Service
from tests.processes.replayed import Endpoint, running, serving, up
from tests.processes.scenario import STEPS, Scenario
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles

FLAGS = (  # a container has no room for Chromium's sandbox, and Debian's calls home otherwise
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
KEPT = ("accepted", "corrected", "bonus")
QUESTION = "How fast is the train?"
DESKTOP, PHONE = (1280, 860), (360, 740)
STEP = "#steps > .step"
SECONDS = 15  # for what a page shows soon, on a machine that may be busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if BROWSER is None and os.environ.get("CI") != "true":
        pytest.skip(
            "no Chromium on this machine, so the page is not tested: scripts/browser.sh "
            "installs one"
        )
    assert BROWSER is not None, "no Chromium, although CI=true: scripts/browser.sh installs one"
    expect.set_options(timeout=SECONDS * 1000)  # the one of a context is not its
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(Endpoint(Scenario().run())) as endpoint:
        yield endpoint


@dataclass
class Real:
    """The endpoint itself, over simulated runtimes in this process."""

    url: str
    engine: AnswerEngine


@contextmanager
def really(steps: int = 24, keys: tuple[str, ...] = ()) -> Iterator[Real]:
    model = Model(alpha=(0.6,), steps=steps, seed=3)
    roles = simulated_roles(Simulation(model, step_seconds=0.05, judge_seconds=0.008, c1=0.15))
    modes = ("lookahead", "lossless", "autoregressive")
    service = Service(model="simulated", modes=modes, verifiers=("judge", "exact"), max_depth=8)
    app = create_app(roles, service, Keys(keys))
    with running(EndpointServer(app, service)) as url:
        yield Real(url, app.state.engine)


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with really(keys=("sk-of-a-lab",)) as real:
        yield real


@pytest.fixture
def endless() -> Iterator[Real]:
    """One whose answers take many seconds, so that none is at its end before it is stopped."""
    with really(steps=400) as real:
        yield real


@dataclass
class Visits:
    """Opens pages, and sees whatever no page may do: leave its origin, break its policy, fail in a
    script.
    """

    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __call__(
        self, endpoint: Endpoint | Real, size: tuple[int, int] = DESKTOP, **options
    ) -> Page:
        viewport = {"width": size[0], "height": size[1]}
        context = self.browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
        context.set_default_timeout(SECONDS * 1000)
        self.contexts.append(context)
        page = context.new_page()

        def requested(request) -> None:
            if not request.url.startswith(endpoint.url):
                self.wrong.append(f"request to {request.url}")

        page.on("request", requested)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on(
            "dialog",
            lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        page.on(
            "console",
            lambda said: self.wrong.append(said.text) if "Content Security" in said.text else None,
        )
        page.goto(endpoint.url)
        return page


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    for context in visits.contexts:
        context.close()
    assert not visits.wrong


def ask(page: Page, question: str = QUESTION) -> None:
    page.fill("#question", question)
    page.keyboard.press("Enter")


def ended(page: Page, state: str = "done", seconds: float = SECONDS) -> None:
    expect(page.locator("body")).to_have_attribute("data-state", state, timeout=seconds * 1000)


def kept(endpoint: Endpoint) -> list[dict]:
    return [event for event in endpoint.events if event["kind"] in KEPT]


def shown(page: Page) -> list[tuple[str, str]]:
    """Outcome and kept text of every step on the page, in order."""
    script = """items => items.map(item => {
        const side = item.dataset.kept === "target" ? ".target" : ".draft[data-state=accepted]";
        return [item.dataset.outcome, item.querySelector(`:scope > .pair > ${side} .text`)?.textContent ?? ""];
    })"""
    return [tuple(pair) for pair in page.locator(STEP).evaluate_all(script)]


def whole(endpoint: Endpoint) -> list[tuple[str, str]]:
    return [(event["kind"], event["text"].strip()) for event in kept(endpoint)]


def test_an_answer_grows_a_tree(endpoint, visit):
    page = visit(endpoint)
    ask(page)
    ended(page)
    assert shown(page) == whole(endpoint)
    assert {"accepted", "corrected"} <= {outcome for outcome, _ in shown(page)}

    fourth = page.locator(STEP).nth(3)  # the first that is refused
    expect(fourth.locator("> .pair > .draft")).to_have_attribute("data-state", "rejected")
    expect(fourth.locator("> .pair > .draft .text")).to_have_text(STEPS[3][0])
    expect(fourth.locator("> .pair > .target .text")).to_have_text(STEPS[3][1])
    expect(fourth.locator("> .pair .verdict")).to_have_attribute("data-says", "rejected")
    expect(fourth.locator("> .pair .by")).to_have_text("judge")
    expect(fourth.locator("> .pair .glyph")).to_have_attribute("data-glyph", "differ")

    cancelled = {event["node"] for event in endpoint.events if event.get("outcome") == "cancelled"}
    drafted = {
        event["node"]: event["text"].strip()
        for event in endpoint.events
        if event["kind"] == "drafted"
    }
    script = (
        "all => all.map(e => [+e.dataset.node, e.dataset.state, "
        "e.querySelector('.text').textContent])"
    )
    given_up = {
        node: (state, text)
        for node, state, text in page.locator(".given-up .draft").evaluate_all(script)
    }
    assert len(cancelled) >= 2
    assert {node: given_up[node] for node in cancelled} == {
        n: ("cancelled", drafted.get(n, "")) for n in cancelled
    }
    assert fourth.locator(".given-up .step").count() >= 1
    assert page.locator(".given-up").first.is_visible()

    expect(page.locator("#reasoning")).to_have_text(
        "\n\n".join(text for _, text in whole(endpoint)[:-1])
    )
    expect(page.locator("#content")).to_have_text(whole(endpoint)[-1][1])
    (body,) = endpoint.asked
    assert body["model"] == "pocket-target" and body["messages"] == [
        {"role": "user", "content": QUESTION}
    ]
    assert (
        body["stream"]
        and body["stream_options"] == {"include_usage": True}
        and body["lookahead"] == {"trace": True}
    )


def test_the_figures_are_those_of_the_answer(endpoint, visit):
    page = visit(endpoint)
    ask(page)
    ended(page)
    steps = kept(endpoint)
    accepted = sum(event["kind"] == "accepted" for event in steps)
    tokens = sum(event["tokens"] for event in steps)
    seconds = endpoint.events[-1]["seconds"]
    for name, text in {
        "alpha": f"{accepted / len(steps):.2f}",
        "compared": f"{accepted} of {len(steps)} drafts",
        "steps": str(len(steps)),
        "tokens": str(tokens),
        "speed": f"{tokens / seconds:.0f}",
        "time": f"{seconds:.2f} s",
    }.items():
        expect(page.locator(f"[data-figure={name}]")).to_have_text(text)
    expect(page.locator("#finish")).to_contain_text(
        "complete · lookahead · 420 tokens drafted, 130 wasted"
    )
    expect(page.locator("#status")).to_contain_text(f"Answer complete: {len(steps)} steps")


def test_a_step_is_shown_while_it_is_made_and_stop_stops(endpoint, visit):
    # it cannot be at its end before a page on a busy machine has stopped it
    endpoint.held_at = 1 + next(
        n for n, event in enumerate(endpoint.events) if event["kind"] == "accepted"
    )
    page = visit(endpoint)
    expect(page.locator("#stop")).to_be_disabled()
    ask(page)
    expect(page.locator(f"{STEP} .version[data-state=writing]").first).to_be_visible()
    expect(page.locator(f"{STEP}[data-outcome=accepted]").first).to_be_visible()
    expect(page.locator("[data-figure=ahead]")).not_to_have_text("–")
    page.click("#stop")
    ended(page, "stopped")
    expect(page.locator("#finish")).to_have_text("stopped")
    assert page.locator(f"{STEP}[data-outcome=accepted]").count() >= 1
    assert page.locator("[data-state=writing]").count() == 0
    for _ in range(50):
        if endpoint.stopped:
            break
        page.wait_for_timeout(100)
    assert endpoint.stopped == 1  # the endpoint sees that nobody listens any more
    endpoint.held_at, endpoint.pace = None, 8
    ask(page, "And now?")  # nothing of the first is left
    ended(page)
    assert shown(page) == whole(endpoint)


REFUSALS = (
    ((400, {}, "depth: at most 8"), "does not take this question. It says: “depth: at most 8”"),
    ((401, {}, "no key"), "asks for an API key"),
    ((404, {}, "no model x"), "no such model here"),
    ((413, {}, "too big"), "longer than the endpoint takes"),
    (
        (503, {"retry-after": "7"}, "target down"),
        "cannot answer now. It says: “target down” Try again in 7 s.",
    ),
    ((500, {}, ""), "failed (status 500)"),
)


def test_a_refusal_is_told_in_words_and_can_be_asked_again(endpoint, visit):
    endpoint.refusals, endpoint.pace = [refusal for refusal, _ in REFUSALS], math.inf
    page = visit(endpoint)
    ask(page)
    for _, words in REFUSALS:
        expect(page.get_by_role("alert")).to_contain_text(words)
        ended(page, "failed")
        page.get_by_role("button", name="Ask again").click()
    ended(page)
    expect(page.locator("#trouble")).to_be_hidden()
    assert shown(page) == whole(endpoint)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("broken_at", "The stream broke off"),
        ("error_at", "gave this answer up: the target is gone."),
    ],
)
def test_a_stream_that_ends_early_keeps_what_came(endpoint, visit, what, words):
    at = 1 + next(
        number for number, event in enumerate(endpoint.events) if event["kind"] == "corrected"
    )
    setattr(endpoint, what, at)
    endpoint.pace = math.inf
    page = visit(endpoint)
    ask(page)
    ended(page, "failed")
    expect(page.get_by_role("alert")).to_contain_text(words)
    expect(page.get_by_role("alert")).to_contain_text("The 4 steps that came are kept below")
    assert [step for step in shown(page) if step[0] != "dead"] == whole(endpoint)[:4]


def test_an_endpoint_that_is_gone_is_told(visit):
    with serving(Endpoint(Scenario().run())) as endpoint:
        page = visit(endpoint)
        expect(page.locator("#model")).to_have_text("pocket-target")
    ask(page)
    ended(page, "failed")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#notice")).to_contain_text("does not answer", timeout=20000)


def test_the_key_is_asked_for_and_kept_in_this_tab_only(endpoint, visit):
    endpoint.refusals, endpoint.pace = [(401, {}, "no key")], math.inf
    page = visit(endpoint)
    ask(page)
    ended(page, "failed")
    expect(page.locator("[name=key]")).to_be_focused()
    page.keyboard.type("sk-of-a-lab")
    ask(page)
    ended(page)
    assert endpoint.keys == [None, "Bearer sk-of-a-lab"]
    assert page.evaluate("[JSON.stringify(localStorage), document.cookie, location.search]") == [
        "{}",
        "",
        "",
    ]
    page.reload()
    assert page.locator("[name=key]").input_value() == "sk-of-a-lab"
    assert visit(endpoint).locator("[name=key]").input_value() == ""

    page.locator("#settings").evaluate("details => details.open = true")
    page.fill("[name=key]", "schlüssel🔑")
    ask(page)
    ended(page, "failed")
    expect(page.get_by_role("alert")).to_contain_text("letters that no key has")


EVIL = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><svg '
    'onload="window.hacked=3">'
    '<a href="javascript:window.hacked=4">x</a>{}</p></div>‮ &lt;b&gt;'
)


def test_text_is_never_markup(endpoint, visit):
    endpoint.events = Scenario(wrap=EVIL).run()
    for event in endpoint.events:
        if "verdict" in event:
            event["verdict"] |= {"by": EVIL[:60], "reason": EVIL}
    endpoint.pace = math.inf
    endpoint.refusals = [(400, {}, EVIL)]
    page = visit(endpoint)
    ask(page, EVIL)
    ended(page, "failed")
    expect(page.get_by_role("alert")).to_contain_text('<img src=x onerror="window.hacked=1">')
    ask(page, EVIL)
    ended(page)
    page.locator(STEP).nth(3).click()
    expect(page.locator(".words")).to_contain_text("<script>window.hacked=2</script>")
    assert shown(page) == whole(endpoint)
    expect(page.locator("#asked")).to_contain_text("<img src=x")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked ?? 0") == 0
    assert page.locator("body img, body script, body a, [onerror], [onload]").count() == 0


@pytest.mark.parametrize("size", [PHONE, (320, 568)], ids=["360", "320"])
def test_a_phone_shows_it_all_without_scrolling_sideways(endpoint, visit, size):
    long = "x" * 300
    endpoint.events, endpoint.pace = Scenario(14, wrap="{} " + long).run(), math.inf
    endpoint.refusals = [(400, {}, long)]
    endpoint.ready = {"status": "degraded", "roles": up(judge="down")}
    page = visit(endpoint, size, has_touch=True, is_mobile=True)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        wide = page.evaluate(
            "wide => [...document.querySelectorAll('main *, #composer *, #figures *, .bar "
            "*')].filter("
            "e => e.getClientRects().length && !e.closest('.hidden') && "
            "e.getBoundingClientRect().right > wide + 0.5)"
            ".map(e => e.className || e.tagName)",
            size[0],
        )
        assert not wide

    fits()
    page.locator("#settings summary").tap()
    ask(page, long)
    ended(page, "failed")
    fits()
    page.get_by_role("button", name="Ask again").tap()
    ended(page)
    fits()
    fourth = page.locator(STEP).nth(3)
    fourth.locator("> .pair").tap()
    expect(fourth.locator("> .words")).to_be_visible()
    draft, target = (
        fourth.locator(f"> .pair > .{role}").bounding_box() for role in ("draft", "target")
    )
    assert draft["y"] + draft["height"] <= target["y"]  # one below the other
    fits()


def figure(page: Page, name: str) -> str:
    return page.locator(f"[data-figure={name}]").text_content() or ""


def test_the_endpoint_itself_is_shown(real, visit):
    page = visit(real)
    ask(page, "Simulated question 1?")
    ended(page, "failed")
    expect(page.get_by_role("alert")).to_contain_text("asks for an API key")
    page.keyboard.type("sk-of-a-lab")
    ask(page, "Simulated question 1?")
    ended(page)
    expect(page.locator("#model")).to_have_text("simulated")
    steps = [step for step in shown(page) if step[0] != "dead"]
    kinds = [kind for kind, _ in steps]
    assert len(steps) == 24 and {"accepted", "corrected"} <= set(kinds)
    assert page.locator(".given-up .step").count() >= 1
    expect(page.locator("#content")).to_have_text(" ".join(text for _, text in steps))
    assert figure(page, "steps") == "24" and 0.2 < float(figure(page, "alpha")) < 1
    assert re.search(
        r"lookahead · \d+ tokens drafted, \d+ wasted · \d+ delivered", page.text_content("#finish")
    )
    for role in ("draft", "target", "judge"):
        expect(page.locator(f"#lamps [data-role={role}]")).to_have_attribute("data-is", "up")
    assert page.locator("[name=mode] option").all_text_contents()[1:] == [
        "lookahead",
        "lossless",
        "autoregressive",
    ]
    assert page.locator("[name=depth]").get_attribute("max") == "8"

    page.select_option("[name=mode]", "autoregressive")
    ask(page, "Simulated question 1?")
    ended(page)
    assert {kind for kind, _ in shown(page) if kind != "dead"} == {"bonus"} and figure(
        page, "steps"
    ) == "24"
    assert page.locator(".given-up .draft").count() == 0


def test_answers_of_the_endpoint_itself_are_stopped(endless, visit):
    page = visit(endless)
    page.click("#settings summary")
    for mode, outcome in (("autoregressive", "bonus"), ("lookahead", "accepted")):
        page.select_option("[name=mode]", mode)
        ask(page, "Simulated question 2?")
        expect(page.locator(f"{STEP}[data-outcome={outcome}]").first).to_be_visible()
        assert not endless.engine.idle
        page.keyboard.press("Escape")
        ended(page, "stopped")
        for _ in range(50):
            if endless.engine.idle:
                break
            page.wait_for_timeout(100)
        assert endless.engine.idle
