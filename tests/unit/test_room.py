"""What a command says at start of servers that have too little room for its answers."""

from contextlib import contextmanager

import pytest

from lr_sglang.api import session
from lr_sglang.api.session import Wanted, beyond_context, short_of_room
from lr_sglang.cli.settings import settle
from tests.called import called
from tests.scripted import deployment, set_facts
from tests.scripted_cli import Servers, transports


def roles(room=42, kv=None, **more):
    made = deployment(**transports()).roles
    for backend in made.values():
        context = more.get("context", 4090)
        set_facts(backend, max_running_requests=room, kv_tokens=kv, context=context)
    return made


def told(options, answers=1, made=None):
    plan = settle({"mode": (), **options})
    return list(short_of_room(made or roles(), [Wanted(plan, plan.modes, answers)]))


@pytest.mark.parametrize(
    ("options", "answers", "said"),
    [
        ({}, 1, []),
        ({}, 8, []),  # 8 x 5 of 42
        ({"depth": 60}, 1, ["runs 42 requests at a time, and an answer at depth 60 can have 60"]),
        ({}, 40, ["40 answers at depth 5 can have 200, so 8 have room"]),
        ({"mode": ("autoregressive",)}, 42, []),
        ({"mode": ("autoregressive",)}, 64, ["target: it runs 42 requests at a time, and 64 answ"]),
        ({"mode": ("lossless",)}, 16, ["16 answers at depth 5 can have 80"]),
        ({"judge": "target", "verifier": "judge"}, 8, []),
        ({"schedule": "sync", "depth": 42}, 1, ["target: it runs 42", "can have 43"]),
    ],
)
def test_slots_fewer_than_branches_are_told(options, answers, said):
    found = told(options, answers)
    assert bool(found) == bool(said)
    assert all(any(part in text for text in found) for part in said)
    assert all("--max-running-requests" in text for text in found)


def test_roles_that_share_a_server_share_its_slots():
    made = roles()
    made["judge"].slots = made["target"].slots
    (text,) = told({"judge": "target"}, 8, made)
    assert text.startswith("target and judge: it runs 42 requests at a time, and 8 answers at dep")
    assert "can have 80" in text and "--max-running-requests 84" in text


def test_where_memory_is_the_limit_it_is_named():
    assert told({}, 8, roles(kv=2000))[0].endswith(
        "8 answers at depth 5 can have 40, so 2 have room: the others wait; its "
        "memory holds 2000 tokens"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"max_tokens": 99_999_999},
            "limits.max_tokens 99999999 is more than the target's context",
        ),
        ({"max_tokens": 4090}, "answers end at 4090 tokens, their prompt included"),
        ({"max_tokens": 4089}, ""),
        ({}, ""),
        (
            {"option": {"limits": {"max_total_tokens": 5000}}},
            "limits.max_total_tokens 5000 is more",
        ),
    ],
)
def test_a_token_budget_that_no_context_holds_is_told(options, said):
    found = list(beyond_context(roles(), settle({"mode": (), **options})))
    assert said in found[0] if said else not found


@pytest.mark.parametrize(
    "words",
    [
        ["run", "a", "--depth", "60"],
        ["run", "a", "--concurrency", "40"],
        ["run", "a", "--mode", "autoregressive", "--max-tokens", "99999999"],
        ["bench", "--limit", "1", "--modes", "lookahead", "--sweep", "concurrency=1,40"],
    ],
)
def test_commands_say_it_before_they_answer(here, monkeypatch, words):
    class Small(Servers):
        @contextmanager
        def __call__(self, *asked, **named):
            with super().__call__(*asked, **named) as live:
                for backend in live.roles.values():
                    set_facts(backend, max_running_requests=42)
                yield live

    monkeypatch.setattr(session, "session", Small())
    result = called(*words, "--quiet")
    assert "the others wait" in result.stderr or "limits.max_tokens" in result.stderr
