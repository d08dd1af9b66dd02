"""What the policies of answers are told, beside what their runtimes have done."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lr_sglang.algorithm import policy
from lr_sglang.steps.branch import Branch, Request


@dataclass
class Accounts:
    """Every generation that a policy was told of, and when; and when runtimes had done with each.

    Attributes:
        begun, ended: branches, with the seconds of the answer's clock.
        served: when a runtime was last done with a request, on the same clock.
        statistics: of the runs.
    """

    begun: list[tuple[Branch, float]] = field(default_factory=list)
    ended: list[tuple[Branch, float]] = field(default_factory=list)
    served: dict[Request, float] = field(default_factory=dict)
    statistics: list[policy.RunStatistics] = field(default_factory=list)

    def check(self) -> None:
        """Everything that begins ends, once, at its own time."""
        begun, ended = ([branch for branch, _ in all_of] for all_of in (self.begun, self.ended))
        assert max(Counter(begun).values(), default=1) == 1
        assert Counter(ended) == Counter(begun), "what has begun ends, once"
        for branch, at in self.ended:
            own = self.served.get(branch, at)  # else it waited for a slot until it was cancelled
            assert at == pytest.approx(own, abs=1e-5), f"{branch.role} {branch.outcome}"
        for known in self.statistics:
            assert known.answers == 0
            assert all(known.load(role).running == 0 for role in ("target", "draft", "judge"))


@contextmanager
def accounts() -> Iterator[Accounts]:
    """Watches the answers of a block."""
    seen, make, end = Accounts(), policy.make_policy, Request.end
    clocks: list[Any] = []

    def watched(look: Any, tree: Any, experience: Any, clock: Any) -> policy.Policy:
        made = make(look, tree, experience, clock)
        begun, ended = made.begun, made.ended

        def on_begun(branch: Branch) -> None:
            seen.begun.append((branch, clock()))
            begun(branch)

        def on_ended(branch: Branch, tokens: int = 0) -> None:
            seen.ended.append((branch, clock()))
            ended(branch, tokens)

        made.begun, made.ended = on_begun, on_ended  # type: ignore[method-assign]
        clocks.append(clock)
        seen.statistics.append(experience)
        return made

    def done(request: Request) -> None:
        seen.served[request] = clocks[-1]()
        end(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "make_policy", watched)
        patch.setattr(Request, "end", done)
        yield seen
