"""One rank of a server with tensor parallelism: SGLang's own broadcast and our hooks, no model.

``python -m tests.ranks RANK STORE``: writes what its n-gram layer was offered at each pass, as
JSON. The ranks differ in nothing but that messages come to rank 0 only, at random moments.
"""

import json
import random
import sys
from types import SimpleNamespace

import torch.distributed
from sglang.srt.utils import broadcast_pyobj

from lr_sglang.plugin.route import carrier
from lr_sglang.sglang_api.plugin_protocol import Delivery
from tests.fed import Request, Server, text

PASSES = 40


def main(rank: int, store: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    group = torch.distributed.new_group([0, 1], backend="gloo")
    random.seed(rank)  # only rank 0 draws what arrives
    server = Server("0.5.23", overlap=True)
    requests = [Request(f"r{i}", text(i, 200)) for i in range(4)]
    first = carrier([Delivery(f"r{i}", 0, text(i)[: 4 * i]) for i in range(4)])
    assert server.feeder.keep(None, SimpleNamespace(), first) is None
    for request in requests:
        server.prefill(request)
    offered = []
    for _ in range(PASSES):
        arrived = messages(requests) if rank == 0 else None
        for message in broadcast_pyobj(arrived, rank, group, src=0):
            assert server.feeder.keep(None, SimpleNamespace(), message) is None
        running = [one for one in requests if len(one.written) < len(one.text)]
        if running:
            server.step(*running)
        offered.append({one.rid: server.offered[one.rid] for one in running})
    sys.stdout.write(json.dumps({"offered": offered, "counts": server.counts}))
    torch.distributed.destroy_process_group()


def messages(requests: list[Request]) -> list[object]:
    """What has come since the last pass: none, or some with right and wrong lines."""
    found = []
    for _ in range(random.randrange(3)):
        lines = []
        for one in random.sample(requests, random.randrange(1, 4)):
            place = max(0, len(one.written) + random.randrange(-5, 9))
            ids = list(one.text[place : place + random.randrange(15)])
            if ids and random.random() < 0.3:
                ids[-1] = 7
            lines.append(Delivery(one.rid, place, ids))
        found.append(carrier(lines))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
