"""Real SGLang servers for the end-to-end tests, started once for all of them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lr_sglang.config import ROLES, TokenLayer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes import Fleet, launch, load_deployment, override_all
from lr_sglang.runtimes.connect import connected
from tests import ROOT
from tests.serving import Process, serving

# A folder with other models called target, draft and judge, to run the same tests on.
MODELS = os.environ.get("LR_SGLANG_TEST_MODELS", "")


@dataclass
class Pocket:
    """The pocket deployment, up and running."""

    roles: dict[str, RuntimeBackend]
    fleet: Fleet

    @property
    def attach(self) -> list[str]:
        """Command-line options that attach to it."""
        return [word for role in ROLES for word in (f"--{role}", self.fleet.urls[role])]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share servers come first: two cores are enough for one set of servers, and tests
    with others of their own have no idle ones beside them.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")
    items.sort(key=lambda item: _turn(item) if here in item.path.parents else 4)


def _turn(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return 2 if "thinking" in names else 1 if "pocket" in names else 3


@pytest.fixture(scope="session")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pocket]:
    """Starts three servers, once per session. Tests that use it share them: leave
    nothing running.
    """
    deployment = load_deployment("pocket")
    for role in ROLES if MODELS else ():
        deployment = override_all(deployment, {role: f"{MODELS}/{role}"})
    # The target reports when each request entered it, so that its reuse of prefixes is known
    # exactly; speculation has servers of its own (test_token_layer.py).
    target = deployment.runtimes["target"].replace(
        extra={"enable-metrics": True}, token_layer=TokenLayer()
    )
    deployment = deployment.replace(runtimes={**deployment.runtimes, "target": target})
    with (
        launch(deployment, tmp_path_factory.mktemp("logs"), timeout=280) as fleet,
        connected(fleet) as roles,
    ):
        yield Pocket(roles, fleet)


# A template that reads all that SGLang gives to one: roles, names, calls, results, arguments.
RICH = ROOT / "tests/data/rich.jinja"


@dataclass
class Stand:
    """Servers of the models that think, and the endpoint before them."""

    fleet: Fleet
    endpoint: Process


@pytest.fixture(scope="session")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Servers of the models that think, and an endpoint that answers losslessly. The draft's own
    server renders by another template.
    """
    folder = tmp_path_factory.mktemp("thinking")
    models = {role: f"pocket:{role}-thinks" for role in ("target", "draft")}
    deployment = override_all(load_deployment("pocket"), models)
    runtimes = {role: deployment.runtimes[role] for role in models}
    runtimes["draft"] = runtimes["draft"].replace(extra={"chat-template": str(RICH)})
    options = ("--mode", "lossless", "--verifier", "exact", "-o", "serve.model=thinker")
    with launch(deployment.replace(runtimes=runtimes), folder, timeout=280) as fleet:
        with serving(folder, fleet.urls, *options) as endpoint:
            yield Stand(fleet, endpoint)
