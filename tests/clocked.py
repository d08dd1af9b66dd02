"""An answer on a simulated clock: the real programs and step tree, and steps that take as long as
they are told.

Only what touches a runtime is replaced, and nothing waits for a real one. A draft step takes
``c1``, a target step 1, a verdict ``judge``. Every step has one token, so that the budget is the
number of steps.
"""

import heapq

from lr_sglang.algorithm import policy
from lr_sglang.config import Lookahead
from lr_sglang.steps.step import Ending, Step
from lr_sglang.steps.tree import Branch, Node, Pair, StepTree, Verdict

STEP = Step("x", (0,), Ending.DELIMITER)


class State:
    """Stands for every state of the program, on every runtime: its text is of no consequence."""

    def __init__(self):
        self.stream_executor, self.roles = self, {"target": self, "draft": self}

    def forked(self, backend):
        return self

    def submit(self, expression):
        pass

    def end(self):
        pass

    @property
    def backend(self):
        return self

    @backend.setter
    def backend(self, other):
        pass


STATE = State()


class Clocked:
    """Stands for ``lr_sglang.algorithm.answer.Answer``.

    Args:
        accepts: says of a position whether a draft of it is accepted.
        lasts: drawn for every step, and multiplied with the time that it would take.

    Attributes:
        now: the time on the clock, in target steps; ``kept`` has it for every step of the answer.
        most: the most target steps that were written at once.
    """

    def __init__(self, accepts, c1, depth, judge=0.0, steps=1000, width=1, lasts=lambda: 1.0):
        self.tree = StepTree(depth, width, steps)
        self.tree.root.state = STATE
        self.policy = policy.make(
            Lookahead(depth=depth, width=width), self.tree, policy.RunStatistics()
        )
        self.ended, self.now, self.kept, self.most = False, 0.0, [], 0
        self._accepts, self._judge, self._takes = accepts, judge, {"draft": c1, "target": 1.0}
        self._queue, self._order, self._lasts = [], 0, lasts

    def can_ask(self, role):
        return True

    def gen_step(self, node, role):
        return ""

    def watch(self, state, node, child=None):
        role = "target" if child is None else "draft"
        self._in(self._takes[role] * self._lasts(), node, child)
        self.most = max(
            self.most,
            sum(child is None and not node.dropped for _, _, node, child, _ in self._queue),
        )
        return Branch(role, node.position)

    def ask_verifier(self, child: Node, pair: Pair):
        verdict = Verdict(self._accepts(child.parent.position), "drawn")
        if self._judge:
            child.asked = True
            self._in(self._judge, child.parent, child, verdict)
        else:
            child.verdict = verdict

    def _in(self, seconds, node, child, verdict=None):
        self._order += 1
        heapq.heappush(self._queue, (self.now + seconds, self._order, node, child, verdict))

    async def first_done(self):
        while True:
            when, _, node, child, verdict = heapq.heappop(self._queue)
            if node.dropped or (child is not None and child.dropped):
                continue  # it was cancelled, and nobody waited for it
            self.now = when
            if verdict is not None:
                child.verdict = verdict
            elif child is None:
                node.target, node.target_state = STEP, STATE
                for late in node.children:
                    if late.step is None:
                        late.verdict = Verdict(False, "late")
            elif child.verdict is None:
                child.state = STATE
                self.tree.drafted(child, STEP)
            return node

    async def all_done(self):
        nodes = []
        while any(not (e[2].dropped or (e[3] is not None and e[3].dropped)) for e in self._queue):
            nodes.append(await self.first_done())
        return list(dict.fromkeys(nodes))

    def cancel_all_but_chosen(self, node):
        for child in node.children:
            if child is not node.chosen:
                self.tree.drop(child)

    def keep(self, node):
        self.kept.append(self.now)
        self.ended = self.tree.ends(node)
        node.parent = None
