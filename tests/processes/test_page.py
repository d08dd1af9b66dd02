"""The endpoint's page in a real browser: over events of a known answer, and over what the endpoint
itself says.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Lookahead
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.serve.settings import Service
from lr_sglang.verifiers import Setup, make_verifier
from tests import fixture_of
from tests.endpoint import CHAT, serving
from tests.processes.conftest import SECONDS
from tests.serving import until
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation
from tests.simulated.transport import simulated_roles

KEPT = ("accepted", "corrected", "bonus")
QUESTION = "How fast is the train?"
STEP = "#steps > .step"
REFUSED = {3, 7}  # of nine steps
USED = {"mode": "lookahead", "degraded": False, "drafted_tokens": 420, "wasted_tokens": 130}


def events(steps: int = 9, wrap: str = "{}") -> list[dict[str, Any]]:
    """What an answer tells whose fourth step is the first that is refused, with every text put into
    ``wrap``.
    """
    model = Model(trace=(tuple(n % 9 not in REFUSED for n in range(steps)),), steps=steps)
    roles, told = simulated_roles(Simulation(model, 0.4, 0.2, 0.05)), []
    verifier = make_verifier("judge", Setup(roles, "paper"))
    request = AnswerRequest(Lookahead(depth=5), verifier=verifier, on_event=told.append)
    asked = [{"role": "user", "content": QUESTION}]
    with ThreadPoolExecutor(1) as thread:  # in this one runs Playwright's event loop
        program = run_program(lookahead, asked, request, backend=roles["target"])
        thread.submit(run_virtually, program).result()
    found = [event.to_dict() for event in told]
    for event in found:
        if "text" in event:
            event["text"] = wrap.format(event["text"].strip()) + "\n\n"
    return found


@dataclass
class Replay:
    """Answers in the endpoint's place.

    Attributes:
        url: of the endpoint.
        refusals: statuses, with headers and messages, that come before any answer.
        cut: after so many events the stream ends with no word (``broken``) or with an ``error``, or
            nothing more comes (``held``).
        stopped: how often a client was gone before the end.
    """

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=events)
    refusals: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    cut: tuple[str, int] = ("", 0)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    stopped: int = 0

    async def chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.refusals:
            status, headers, message = self.refusals.pop(0)
            return JSONResponse({"error": {"message": message, "type": "error"}}, status, headers)
        return StreamingResponse(self.chunks(), media_type="text/event-stream")

    async def chunks(self) -> AsyncIterator[str]:
        kind, at = self.cut
        shown = self.events[: at if kind else None]
        try:
            yield choice({"role": "assistant"})
            for event in shown:
                yield line({"choices": [], "lookahead": {"event": event}})
                if event["kind"] in KEPT:
                    last = event["position"] >= self.events[-1]["position"] - 1
                    yield choice({"content" if last else "reasoning_content": event["text"]})
            if kind == "held":
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.stopped += 1
            raise
        if kind == "error":
            yield line({"error": {"message": "the target is gone", "type": "server_error"}})
        elif not kind:
            yield choice({}, "stop")
            yield line({"choices": [], "usage": {"completion_tokens": 290}, "lookahead": USED})
            yield "data: [DONE]\n\n"


def choice(delta: dict[str, str], why: str | None = None) -> str:
    return line({"choices": [{"index": 0, "delta": delta, "finish_reason": why}]})


def line(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


@contextmanager
def really() -> Iterator[Any]:
    """The endpoint over simulated runtimes in this process."""
    model = Model(alpha=(0.6,), steps=24, seed=3)
    roles = simulated_roles(Simulation(model, step_seconds=0.05, judge_seconds=0.008, c1=0.15))
    modes = ("lookahead", "lossless", "autoregressive")
    service = Service(model="simulated", modes=modes, verifiers=("judge", "exact"), max_depth=8)
    with serving(roles, service) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint() -> Iterator[Replay]:
    with really() as endpoint:
        replay = Replay(endpoint.url)
        endpoint.app.router.routes.insert(0, Route(CHAT, replay.chat, methods=["POST"]))
        yield replay


@pytest.fixture
def page(endpoint: Replay, visit: Any) -> Page:
    return visit(endpoint.url)


def ended(page: Page, state: str = "done") -> None:
    expect(page.locator("body")).to_have_attribute("data-state", state, timeout=SECONDS * 1000)


def ask(page: Page, question: str = QUESTION, state: str = "done") -> None:
    """Until the page is in that state."""
    page.fill("#question", question)
    page.keyboard.press("Enter")
    ended(page, state)


def kept(endpoint: Replay) -> list[dict]:
    return [event for event in endpoint.events if event["kind"] in KEPT]


def shown(page: Page) -> list[tuple[str, str]]:
    """Outcome and kept text of every step on the page, in order."""
    script = """items => items.map(item => {
        const side = item.dataset.kept === "target" ? ".target" : ".draft[data-state=accepted]";
        return [item.dataset.outcome, item.querySelector(`:scope > .pair > ${side} .text`)?.textContent ?? ""];
    })"""
    return [tuple(pair) for pair in page.locator(STEP).evaluate_all(script)]


def whole(endpoint: Replay) -> list[tuple[str, str]]:
    return [(event["kind"], event["text"].strip()) for event in kept(endpoint)]


def test_an_answer_grows_a_tree(endpoint, page):
    ask(page)
    assert shown(page) == whole(endpoint)
    assert {"accepted", "corrected"} <= {outcome for outcome, _ in shown(page)}

    fourth = page.locator(STEP).nth(3)  # the first that is refused
    (refused,) = (
        one for one in endpoint.events if one["kind"] == "corrected" and one["position"] == 3
    )
    rejected = next(
        one for one in endpoint.events if one["kind"] == "drafted" and one["position"] == 3
    )
    expect(fourth.locator("> .pair > .draft")).to_have_attribute("data-state", "rejected")
    expect(fourth.locator("> .pair > .draft .text")).to_have_text(rejected["text"].strip())
    expect(fourth.locator("> .pair > .target .text")).to_have_text(refused["text"].strip())
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
    assert body["model"] == "simulated" and body["messages"] == [
        {"role": "user", "content": QUESTION}
    ]
    assert (
        body["stream"]
        and body["stream_options"] == {"include_usage": True}
        and body["lookahead"] == {"trace": True}
    )

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


def test_a_step_is_shown_while_it_is_made_and_stop_stops(endpoint, page):
    """That the endpoint then stops is seen in tests/integration/test_serve.py."""
    expect(page.locator("#stop")).to_be_disabled()
    for number, stop in enumerate(
        (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape"))
    ):
        kinds = [event["kind"] for event in endpoint.events]
        endpoint.cut = ("held", kinds.index("accepted") + 1)
        ask(page, state="asking")
        expect(page.locator(f"{STEP} .version[data-state=writing]").first).to_be_visible()
        expect(page.locator(f"{STEP}[data-outcome=accepted]").first).to_be_visible()
        expect(page.locator("[data-figure=ahead]")).not_to_have_text("–")
        stop()
        ended(page, "stopped")
        expect(page.locator("#finish")).to_have_text("stopped")
        assert page.locator(f"{STEP}[data-outcome=accepted]").count() >= 1
        assert page.locator("[data-state=writing]").count() == 0
        # the endpoint sees that nobody listens any more
        until(lambda: endpoint.stopped == number + 1, SECONDS)  # noqa: B023
    endpoint.cut = ("", 0)
    ask(page, "And now?")  # nothing of the others is left
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


def test_a_refusal_is_told_in_words_and_can_be_asked_again(endpoint, page):
    endpoint.refusals = [refusal for refusal, _ in REFUSALS]
    ask(page, state="failed")
    for _, words in REFUSALS:
        expect(page.get_by_role("alert")).to_contain_text(words)
        ended(page, "failed")
        page.get_by_role("button", name="Ask again").click()
    ended(page)
    expect(page.locator("#trouble")).to_be_hidden()
    assert shown(page) == whole(endpoint)


def test_a_stream_that_ends_early_keeps_what_came(endpoint, page):
    at = 1 + [event["kind"] for event in endpoint.events].index("corrected")
    for kind, words in (
        ("broken", "The stream broke off"),
        ("error", "gave this answer up: the target is gone."),
    ):
        endpoint.cut = (kind, at)
        ask(page, state="failed")
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(page.get_by_role("alert")).to_contain_text("The 4 steps that came are kept below")
        assert [step for step in shown(page) if step[0] != "dead"] == whole(endpoint)[:4]


def test_an_endpoint_that_is_gone_is_told(visit):
    with really() as endpoint:
        page = visit(endpoint.url)
        expect(page.locator("#model")).to_have_text("simulated")
    ask(page, state="failed")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#notice")).to_contain_text("does not answer", timeout=20000)


def test_the_key_is_asked_for_and_kept_in_this_tab_only(endpoint, page, visit):
    endpoint.refusals = [(401, {}, "no key")]
    ask(page, state="failed")
    expect(page.locator("[name=key]")).to_be_focused()
    page.keyboard.type("sk-of-a-lab")
    ask(page)
    assert endpoint.keys == [None, "Bearer sk-of-a-lab"]
    assert page.evaluate("[JSON.stringify(localStorage), document.cookie, location.search]") == [
        "{}",
        "",
        "",
    ]
    page.reload()
    assert page.locator("[name=key]").input_value() == "sk-of-a-lab"
    assert visit(endpoint.url).locator("[name=key]").input_value() == ""

    page.locator("#settings").evaluate("details => details.open = true")
    page.fill("[name=key]", "schlüssel🔑")
    ask(page, state="failed")
    expect(page.get_by_role("alert")).to_contain_text("letters that no key has")


EVIL = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><svg '
    'onload="window.hacked=3">'
    '<a href="javascript:window.hacked=4">x</a>{}</p></div>‮ &lt;b&gt;'
)


def test_text_is_never_markup(endpoint, page):
    endpoint.events = events(wrap=EVIL)
    for event in endpoint.events:
        if "verdict" in event:
            event["verdict"] |= {"by": EVIL[:60], "reason": EVIL}
    endpoint.refusals = [(400, {}, EVIL)]
    ask(page, EVIL, "failed")
    expect(page.get_by_role("alert")).to_contain_text('<img src=x onerror="window.hacked=1">')
    ask(page, EVIL)
    page.locator(STEP).nth(3).click()
    expect(page.locator(".words")).to_contain_text("<script>window.hacked=2</script>")
    assert shown(page) == whole(endpoint)
    expect(page.locator("#asked")).to_contain_text("<img src=x")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked ?? 0") == 0
    assert page.locator("body img, body script, body a, [onerror], [onload]").count() == 0


def figure(page: Page, name: str) -> str:
    return page.locator(f"[data-figure={name}]").text_content() or ""


real = fixture_of(really, "function")


def test_the_endpoint_itself_is_shown(real, visit):
    page = visit(real.url)
    ask(page, "Simulated question 1?")
    expect(page.locator("#model")).to_have_text("simulated")
    steps = [step for step in shown(page) if step[0] != "dead"]
    assert len(steps) == 24 and {"accepted", "corrected"} <= {kind for kind, _ in steps}
    assert page.locator(".given-up .step").count() >= 1
    expect(page.locator("#content")).to_have_text(" ".join(text for _, text in steps))
    assert figure(page, "steps") == "24" and 0.2 < float(figure(page, "alpha")) < 1
    assert re.search(
        r"lookahead · \d+ tokens drafted, \d+ wasted · \d+ judged, \d+ the target's own · \d+ delivered",
        page.text_content("#finish"),
    )
    for role in ("draft", "target", "judge"):
        expect(page.locator(f"#lamps [data-role={role}]")).to_have_attribute("data-is", "up")
    assert page.locator("[name=mode] option").all_text_contents()[1:] == [
        "lookahead",
        "lossless",
        "autoregressive",
    ]
    assert page.locator("[name=depth]").get_attribute("max") == "8"

    page.locator("#settings").evaluate("details => details.open = true")
    page.select_option("[name=mode]", "autoregressive")
    ask(page, "Simulated question 1?")
    assert {kind for kind, _ in shown(page) if kind != "dead"} == {"bonus"} and figure(
        page, "steps"
    ) == "24"
    assert page.locator(".given-up .draft").count() == 0


def test_each_branch_has_a_bar_also_one_that_only_reads(endpoint, page):
    """As where the target reads what the draft writes, and where it writes several steps at once."""

    def event(kind, seconds, role="", **more):
        return {"kind": kind, "seconds": seconds, "role": role, "position": 0, "prefix": 0, **more}

    told = [
        event("begun", 0.0, "draft"),
        event("done", 1.0, "draft", branch=1),
        event("begun", 1.0, "target"),
        event("begun", 1.0, "draft"),
        event("done", 2.0, "target", branch=2),
        event("cancelled", 2.0, "draft", branch=3),
        event("begun", 2.0, "target"),
        event("bonus", 3.0, "target", node=1, text="a", tokens=1),
        event("bonus", 4.0, "target", position=1, prefix=1, node=2, text="b", tokens=1),
        event("done", 5.0, "target", branch=4),
        event("ended", 5.0, prefix=2, position=2, outcome="stop"),
    ]
    page.goto(endpoint.url)
    apply = """async (told) => {
        const { Tree } = await import('/page/tree.js');
        const tree = new Tree();
        for (const event of told) tree.apply(event);
        return tree.bars.map((bar) => [bar.role, bar.began, bar.ended, bar.state]);
    }"""
    assert page.evaluate(apply, told) == [
        ["draft", 0, 1, "accepted"],
        ["target", 1, 2, "accepted"],
        ["draft", 1, 2, "cancelled"],
        ["target", 2, 5, "corrected"],
    ]
