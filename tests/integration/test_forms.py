"""How much of the package one question passes: files that run, classes that are made, classes that
hold the depth.

What was counted is printed (``pytest -s``), so that what is added to the way of an answer is seen.
"""

import sys
import threading
from collections import Counter, deque
from pathlib import Path

import lr_sglang
from lr_sglang.algorithm.answer import Answer
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.engine.loop import background
from lr_sglang.tasks import Question
from tests import plan
from tests.scripted import deployment
from tests.scripted_cli import transports

MOST_FILES, MOST_CLASSES, MOST_DEPTHS = 45, 14, 3
HERE = Path(lr_sglang.__file__).parent
ROOMS = (str(HERE), str(HERE.parent / "programs"))


class Traced:
    """Notes, while it is entered, the files of the package that run and the classes that are made,
    in this thread and on the event loop. Texts, tuples and errors are values and do not count.
    """

    def __init__(self):
        self.files, self.classes = set(), Counter()

    def __enter__(self):
        self._profile(self._called)
        return self

    def __exit__(self, *_):
        self._profile(None)

    def _profile(self, called):
        done = threading.Event()
        background().call_soon_threadsafe(lambda: (sys.setprofile(called), done.set()))
        done.wait()
        sys.setprofile(called)

    def _called(self, frame, event, _):
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith(ROOMS) and "testing" not in name:
            self.files.add("/".join(Path(name).parts[-2:]))
        if frame.f_code.co_name == "__init__" and "self" in frame.f_locals:
            made = type(frame.f_locals["self"])
            ours = made.__module__.startswith("lr_sglang.") and "testing" not in made.__module__
            if ours and not issubclass(made, BaseException):
                self.classes[made.__name__] += 1


def holding_depth(answer):
    """The classes of what an answer leads to that hold an attribute ``depth``."""
    seen, waiting, found = {}, [answer], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | deque):
            waiting += one
        elif type(one).__module__.startswith("lr_sglang."):
            known = getattr(one, "__dict__", {})
            waiting += known.values()
            if "depth" in known:
                found.add(type(one).__name__)
    return found


def test_one_question_passes_few_forms(monkeypatch):
    depths, init = set(), Answer.__init__

    def noted(answer, *given):
        init(answer, *given)
        depths.update(holding_depth(answer))

    runner = Runner(deployment(**transports()).roles, Plan())
    first, second = plan([Question(f"q{n}", "6 times 7?", "17") for n in range(2)], ["lookahead"])
    list(runner.run([first]))  # what a run makes once is no part of an answer
    monkeypatch.setattr(Answer, "__init__", noted)
    with Traced() as traced:
        (record,) = runner.run([second])
    assert record["error"] is None
    assert record["accepted"]
    told = (
        f"{len(traced.files)} files: {', '.join(sorted(traced.files))}",
        f"{len(traced.classes)} classes: {dict(traced.classes)}",
        f"depth is held by {', '.join(sorted(depths))}",
    )
    sys.stdout.write("\n".join(["", *told, ""]))
    assert len(traced.files) <= MOST_FILES, told[0]
    assert len(traced.classes) <= MOST_CLASSES, told[1]
    assert len(depths) <= MOST_DEPTHS, told[2]
