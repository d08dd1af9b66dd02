"""A real browser (Debian's Chromium, headless) for the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

FLAGS = (  # a container has no room for Chromium's sandbox, and Debian's calls home otherwise
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DESKTOP = (1280, 860)
SECONDS = 15  # for what a page shows soon, on a machine that may be busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium on this machine: scripts/browser.sh installs one")
    assert CHROMIUM is not None, "no Chromium, although CI=true: scripts/browser.sh installs one"
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=SECONDS * 1000)  # the one of a context is not its
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@dataclass
class Visits:
    """Opens pages, and sees whatever no page may do: leave its origin, break its policy, fail in a
    script.
    """

    browser: Any
    contexts: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __call__(self, url: str, size: tuple[int, int] = DESKTOP, **options: Any) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        context = self.browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
        context.set_default_timeout(SECONDS * 1000)
        self.contexts.append(context)
        page = context.new_page()

        def requested(request: Any) -> None:
            if not request.url.startswith(url):
                self.wrong.append(f"request to {request.url}")

        def said(message: Any) -> None:
            # an endpoint that refuses or is gone is told of by the browser itself
            if message.type == "error" and not message.text.startswith("Failed to load resource"):
                self.wrong.append(message.text)

        def asked(dialog: Any) -> None:
            self.wrong.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("request", requested)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("dialog", asked)
        page.on("console", said)
        page.goto(url)
        return page


@pytest.fixture
def visit(browser: Any) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    for context in visits.contexts:
        context.close()
    assert not visits.wrong
