"""Simulated runtimes that cache prompts as SGLang does, and can lack what doctor looks for."""

import random

from lr_sglang.api.configuration import Plan
from lr_sglang.config import ROLES, Deployment, Runtime
from lr_sglang.engine.doubts import JudgeChecks
from lr_sglang.engine.server_facts import ServerFacts
from tests.prefixes import PrefixCache
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.transport import SimulatedTransport, backends

PLAN = Plan(
    deployment=Deployment(
        name="up",
        runtimes={role: Runtime(url="http://up") for role in ROLES},
        judge_prompt="pocket",
    ),
    models={role: role for role in ROLES},
    modes=("lookahead",),
)


class Server(SimulatedTransport):
    """A simulated runtime that has a prefix cache, or several, and can lack things.

    Attributes:
        workers: caches; each request finds what one of them has.
        cached, scored, aborts: whether it caches prompts, gives log-probabilities, and aborts.
        sent: tokens of requests and replies.
    """

    workers, cached, scored, aborts = 1, True, True, True

    def __init__(self, *about):
        super().__init__(*about)
        self.caches = [PrefixCache() for _ in range(8)]
        self.draw, self.sent = random.Random(1), 0

    async def generate(self, payload, request, timeout):
        ids = tuple(payload["input_ids"])
        worker = self.caches[self.draw.randrange(self.workers)]
        found = worker.longest(ids)
        worker.add(ids)
        self.sent += len(ids)
        reply = await super().generate(payload, request, timeout)
        worker.add((*ids, *reply["output_ids"]))
        meta = reply["meta_info"]
        meta["cached_tokens"] = min(found, len(ids) - 1) if self.cached else 0
        if not self.scored:
            meta.pop("input_token_logprobs", None)
        elif payload.get("top_logprobs_num"):
            meta["input_top_logprobs"] = [[one] for one in meta["input_token_logprobs"]]
        self.sent += len(reply["output_ids"])
        return reply

    def _abort(self, request):
        if self.aborts:
            self.abort(request.rid)
        else:  # what the client does in the end
            request.unheard = True
            request.close_connection()


def runtimes(writer=Writer, slots=None, without=(), alpha=0.9, **lacking):
    """Backends of simulated servers; ``lacking`` are attributes of the target's server."""
    simulation = Simulation(
        Model(alpha=(alpha,), steps=12, tokens=12), step_seconds=0.006, judge_seconds=0.002, c1=0.3
    )
    made, servers = writer(simulation.model), {}
    for role in ROLES:
        if role in without:
            continue
        transport = Server(role, simulation, made)
        for name, value in lacking.items() if role == "target" else ():
            setattr(transport, name, value)
        most = slots if role == "target" else None
        facts = ServerFacts(seeded=True, token_layer="", max_running_requests=most)
        servers[role] = transport, facts
    roles, checks = backends(servers), JudgeChecks()
    for backend in roles.values():
        backend.checks, backend.readable = checks, False
    return roles
