"""The virtual clock: the same step tree, schedules and policy over an event queue. No threads, no waiting.

Only what touches a runtime is replaced (``lr_sglang.answer.Answer``, the interpreter, the transport), and nothing here
takes time but the simulated models. So the time of an answer is the least that its schedule can need: the bound that a
controller on the real clock is measured against.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, cast

from lr_sglang import policy
from lr_sglang.config import ROLES, Lookahead
from lr_sglang.job import Job
from lr_sglang.simulated.engine import Engine, Ticket
from lr_sglang.simulated.model import Place, Writer, Written
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.words import HEAD
from lr_sglang.steps import Ending, Step
from lr_sglang.tree import Branch, Node, Pair, StepTree, Verdict, without_a_judge

_ENDINGS = {"delimiter": Ending.DELIMITER, "end": Ending.END, "length": Ending.CAP}
_BUDGET = 2**30


class World:
    """Runtimes on a clock that jumps from one event to the next.

    Args:
        simulation: the numbers.
        look: how far answers look ahead; its verifier is ``judge`` or ``exact``.
        told: whether the runtimes say how many slots they have, which the answers then share.
        alike: the drafts of a position are the same whatever stands before them, and however many there are: what is
            to be compared has the same luck. On the real clock they follow from the sampling seeds.
    """

    def __init__(
        self,
        simulation: Simulation,
        look: Lookahead,
        told: bool = True,
        writer: Writer | None = None,
        alike: bool = False,
    ) -> None:
        self.simulation, self.look, self.alike = simulation, look, alike
        self.writer = writer or Writer(simulation.model)
        self.engines: dict[str, Engine] = {role: simulation.engine() for role in ROLES}
        self.now = 0.0
        self.experience = policy.Experience()
        self.sharing, self._told = policy.Sharing(), told

    def share(self) -> int | None:
        """What an answer may have in flight on each runtime, with the answers that there are now."""
        return self.sharing.share(self.simulation.slots, None, self.look) if self._told else None

    def start(self, role: str, work: float, owner: Any, priority: int) -> Ticket:
        """One more request."""
        ticket = Ticket(work, owner, priority)
        self.engines[role].add(self.now, ticket)
        return ticket

    def stop(self, role: str, ticket: Ticket) -> None:
        """Nobody wants it any more."""
        self.engines[role].remove(self.now, ticket)

    def tick(self) -> VirtualAnswer:
        """Goes on to the next event; returns the answer that it belongs to."""
        engines = [engine for engine in self.engines.values() if engine.next_due() < math.inf]
        engine = min(engines, key=Engine.next_due)
        self.now, ticket = engine.next_due(), cast(Ticket, engine.head())
        engine.remove(self.now, ticket)
        answer, event = ticket.owner
        answer.inbox.append(event)
        return cast(VirtualAnswer, answer)


class VirtualAnswer:
    """Stands for ``lr_sglang.answer.Answer`` in a world.

    Attributes:
        seconds: when the last step was kept.
        calls: requests by role.
    """

    def __init__(self, world: World, question: int, name: str = "") -> None:
        look = world.look
        self.world, self.job = world, Job(look, question=name, experience=world.experience)
        self.tree = StepTree(look.depth, look.width, _BUDGET, look.half_sentence_guard, hedging=look.hedge)
        self.policy = policy.make(look, self.tree, world.experience, lambda: world.now)
        self.policy.__enter__()
        world.sharing.begin(ahead=True)
        self.tree.root.state = Place(question)
        self.ended, self.seconds, self.kept = False, 0.0, 0
        self.inbox: deque[tuple[Node, Node | None, Written | Verdict]] = deque()
        self.open: dict[Any, tuple[str, Ticket]] = {}
        self.calls: dict[str, int] = dict.fromkeys(ROLES, 0)

    def free(self, role: str, node: Node, steps: int = 1) -> bool:
        """As ``Answer.free``."""
        wanted = [key.hedged for key, (kind, _) in self.open.items() if kind == role]
        running = sum(wanted), len(wanted) - sum(wanted)
        return policy.fits(self.world.look, role, self.world.share(), running, self.tree.hedged(node), steps)

    def branch(self, role: str, node: Node, child: Node | None = None) -> Branch:
        """As ``Answer.branch``."""
        alternative = child.alternative if child else 0
        seed = self.job.seed(role, node.position, node.lineage, alternative)
        place = node.state
        most = min(self.world.look.max_step_tokens, self.tree.room(node))
        version = self.world.writer.model.version(role, alternative if self.world.alike else seed)
        written = self.world.writer.write(place, version, most, True)
        branch = Branch(role, node.position, alternative, seed, hedged=self.tree.hedged(node))
        self._begin(branch, role, len(written.ids), (node, child, written))
        return branch

    def ask(self, child: Node, pair: Pair) -> None:
        """As ``Answer.ask``, with a judge that sees what the model knows."""
        assert child.parent is not None
        child.verdict = without_a_judge(pair)
        if child.verdict is not None:
            return
        same = pair.target.ids == pair.draft.ids
        if same or self.world.look.verifier == "exact":
            child.verdict = Verdict(same, "exact")
            return
        heads = [self.world.writer.words.read(step.ids[:HEAD]) for step in (pair.target, pair.draft)]
        agrees = None not in heads and len({head.meaning for head in heads if head}) == 1
        child.asked = child
        self._begin(
            child,
            "judge",
            1,
            (child.parent, child, Verdict(agrees, "judge", seconds=self.world.simulation.judge_seconds)),
        )

    def _begin(self, key: Any, role: str, tokens: int, event: Any) -> None:
        self.calls[role] += 1
        work = self.world.simulation.work(role, tokens)
        priority = self.policy.priority(event[0]) or 0
        if isinstance(key, Branch):
            self.policy.begun(key)
        self.open[key] = role, self.world.start(role, work, (self, (key, *event)), priority)

    def first_done(self) -> Node:
        """As ``Answer.first_done``; the world goes on until there is something."""
        while not self.inbox:
            self.world.tick()
        return self.take()

    def all_done(self) -> list[Node]:
        """As ``Answer.all_done``."""
        nodes = []
        while self.open:
            nodes.append(self.first_done())
        return list(dict.fromkeys(nodes))

    def take(self) -> Node:
        """What has come, and what follows from it for the tree."""
        node: Node
        key, node, child, result = cast(Any, self.inbox.popleft())
        if self.open.pop(key, None) is None:
            return node  # stopped in the very moment it came
        if isinstance(key, Branch):
            self.policy.ended(key, len(result.ids))
        if isinstance(result, Verdict):
            child.verdict = result
            return node
        step = Step("", result.ids, _ENDINGS[result.finish])
        if child is None:
            node.target, node.target_state = step, result.place
            for late in node.children:
                if late.step is None and late.verdict is None:
                    late.verdict = Verdict(False, "late")
        elif child.verdict is None:
            child.state = result.place
            if self.world.look.gate:
                child.confidence = self.world.writer.confidence(step.ids)
            self.tree.drafted(child, step)
        return node

    def cancel_all_but_chosen(self, node: Node) -> None:
        """As ``Answer.cancel_all_but_chosen``."""
        rest = [c for c in (*node.children, node.correction) if c is not None and c is not node.chosen]
        for below in (n for other in rest for n in other.subtree()):
            below.dropped = True
            for key in (below.drafting, below.expanding, below):
                if key is not None and key in self.open:
                    self._stop(key)

    def keep(self, node: Node) -> None:
        """As ``Answer.keep``."""
        assert node.parent is not None
        self.policy.decided(node.parent)
        self.kept, self.seconds = self.kept + 1, self.world.now
        self.ended = self.tree.ends(node)
        node.parent = None

    def land(self) -> None:
        """As at the end of ``Answer``: nothing is left running."""
        for key in list(self.open):
            self._stop(key)
        self.policy.__exit__()
        self.world.sharing.end(ahead=True)

    def _stop(self, key: Any) -> None:
        self.world.stop(*self.open.pop(key))
        if isinstance(key, Branch):
            self.policy.ended(key)
