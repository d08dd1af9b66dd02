"""The events of an answer that never was: the asynchronous schedule on a clock of its own, for
tests of the page.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

from lr_sglang.steps.events import Event
from lr_sglang.steps.node import Verdict

# The draft's and the target's version of a step; where there is one only, both say the same.
STEPS = (
    ("Okay, let me see what is asked. A train leaves at 9:40 and arrives at 13:05.",
     "Let me read the problem. The train leaves at 9:40 in the morning and gets there at 13:05."),
    ("From 9:40 to 13:05 there are 3 hours and 25 minutes.",
     "So the ride takes 3 hours and 25 minutes, because from 9:40 to 12:40 it is 3 hours, and " "25 minutes are left."),
    ("That is 3 × 60 + 25 = 205 minutes.",),
    ("It stops 4 times for 3 minutes each, so it stands still for 7 minutes.",
     "It stops 4 times, 3 minutes each time. That makes 4 × 3 = 12 minutes in which it stands."),
    ("So it moves for 205 − 12 = 193 minutes.",
     "The time in which it moves is then 205 − 12 = 193 minutes."),
    ("Wait, does the last stop count? The train ends there, so it stops 4 times on the way.",
     "Wait: is the terminus one of the four stops? “On the way” says no, so all four lie in " "between."),
    ("The distance is 386 km, so the speed is 386 / 193 = 2 km per minute.",),
    ("2 km per minute is 100 km/h.",
     "In an hour that makes 2 × 60 = 120 km."),
    ("So while it moves its mean speed is 120 km/h. Let me check: 193 min × 2 km/min = 386 km. ✓",
     "The mean speed while moving is therefore 120 km/h. Checking, 120 × 193/60 = 386. Good."),
)  # fmt: skip
REJECTED = {3, 7}  # of these, in every round
END = "\n\n"


class Scenario:
    """Makes the events of an answer with so many steps.

    Args:
        speed: seconds of a target step of usual length.
        wrap: what every text is put into, ``{}`` being the text.
    """

    def __init__(
        self, steps: int = 9, depth: int = 5, speed: float = 0.4, seed: int = 1, wrap: str = "{}"
    ) -> None:
        self.length, self.depth, self.speed, self.wrap = steps, depth, speed, wrap
        self.draw = random.Random(seed)
        self.events: list[Event] = []
        self.queue: list[tuple[float, int, str, int]] = []
        self.nodes = {0: (0, -1)}  # number -> (position of the next step, parent)
        self.known: dict[tuple[str, int], float] = {}
        self.order = self.now = 0
        self.root = self.tip = 0
        self.judged: set[int] = set()

    def text(self, role: str, position: int) -> str:
        pair = STEPS[position % len(STEPS)]
        return self.wrap.format(pair[0 if role == "draft" else -1]) + END

    def tell(self, kind: str, role: str, node: int | None, prefix: int, **more: Any) -> None:
        position = self.nodes[prefix][0]
        if kind in ("drafted", "written", "accepted", "corrected"):
            more.setdefault("text", self.text(role, position))
            more.setdefault("tokens", len(more["text"]) // 4)
        self.events.append(Event(kind, round(self.now, 4), role, position, prefix, node, **more))  # type: ignore[arg-type]

    def after(self, seconds: float, what: str, number: int) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + seconds, self.order, what, number))

    def expand(self, prefix: int) -> None:
        self.tell("begun", "target", None, prefix)
        self.after(self.speed * self.draw.uniform(0.7, 1.4), "written", prefix)

    def propose(self) -> None:
        if self.nodes[self.tip][0] - self.nodes[self.root][0] < self.depth:
            node = len(self.nodes)
            self.nodes[node] = (self.nodes[self.tip][0] + 1, self.tip)
            self.tell("begun", "draft", node, self.tip)
            self.after(self.speed * self.draw.uniform(0.14, 0.3), "drafted", node)

    def live(self, number: int) -> bool:
        while number > self.root:
            number = self.nodes[number][1]
        return number == self.root

    def run(self) -> list[dict[str, Any]]:
        self.expand(0)
        self.propose()
        while self.queue:
            self.now, _, what, number = heapq.heappop(self.queue)
            if self.live(number):
                getattr(self, what)(number)
            if self.nodes[self.root][0] >= self.length:
                break
        self.events.append(Event("ended", self.now, "", self.length, self.root, outcome="stop"))
        return [event.to_dict() for event in self.events]

    def drafted(self, node: int) -> None:
        self.known["draft", node] = self.now
        self.tell("drafted", "draft", node, self.nodes[node][1])
        self.tip = node
        self.expand(node)
        self.propose()
        self.compare(node)

    def written(self, prefix: int) -> None:
        self.known["target", prefix] = self.now
        self.tell("written", "target", None, prefix)
        for node, (_, parent) in list(self.nodes.items()):
            if parent == prefix:
                self.compare(node)

    def compare(self, node: int) -> None:
        prefix = self.nodes[node][1]
        if ("draft", node) not in self.known or ("target", prefix) not in self.known:
            return
        if len(STEPS[self.nodes[prefix][0] % len(STEPS)]) == 1:
            self.tell("verified", "draft", node, prefix, verdict=Verdict(True, "identical"))
            self.judged.add(node)
            self.decide()
        else:
            self.tell("begun", "judge", node, prefix)
            self.after(self.speed * 0.12, "verified", node)

    def verified(self, node: int) -> None:
        prefix = self.nodes[node][1]
        agree = self.nodes[prefix][0] % len(STEPS) not in REJECTED
        verdict = Verdict(
            agree, "judge", "aligned" if agree else "unaligned", seconds=self.speed * 0.12
        )
        self.tell("verified", "judge", node, prefix, verdict=verdict)
        self.judged.add(node)
        self.decide()

    def decide(self) -> None:
        while self.nodes[self.root][0] < self.length:
            child = next(
                (
                    n
                    for n, (_, parent) in self.nodes.items()
                    if parent == self.root and n in self.judged
                ),
                None,
            )
            if child is None:
                return
            position = self.nodes[self.root][0]
            if position % len(STEPS) not in REJECTED:
                self.tell("accepted", "draft", child, self.root)
                self.root = child
                continue
            before, new = self.root, len(self.nodes)
            self.tell("dropped", "draft", child, before, outcome="rejected")
            for node in range(child + 1, new):
                self.tell("dropped", "draft", node, self.nodes[node][1], outcome="cancelled")
            self.nodes[new] = (position + 1, before)
            self.tell("corrected", "target", new, before)
            self.root = self.tip = new
            if position + 1 < self.length:
                self.expand(new)
                self.propose()
