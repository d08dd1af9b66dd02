"""How much of the package one question passes: files that run, classes that are made, objects that
hold the depth.

The counts are printed (``pytest -s``), so that what is added to the way of an answer is seen.
"""

import sys
import threading
from collections import Counter, deque
from enum import Enum
from pathlib import Path

import lr_sglang
from lr_sglang.algorithm.answer import Answer
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Lookahead
from lr_sglang.engine.loop import background
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import plan
from tests.scripted import deployment
from tests.scripted_cli import transports

MOST_FILES, MOST_CLASSES, MOST_DEPTHS = 45, 14, 3
HERE = str(Path(lr_sglang.__file__).parent)
# One screen each, beside the package; installed as lr_sglang.programs.
PROGRAMS = str(Path(HERE).parent / "programs")


def ours():
    """The classes of the package, without enumerations and those of doubles for tests."""
    modules = [m for name, m in sys.modules.items() if name.startswith("lr_sglang.")]
    found = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__.startswith("lr_sglang.")
    }
    return {one for one in found if one.__module__ != "lr_sglang.testing"} - {
        one for one in found if issubclass(one, Enum)
    }


class Traced:
    """Counts, while it is entered, the files of the package that run and the classes that are
    made.
    """

    def __init__(self):
        self.files, self.classes, self.depths = set(), Counter(), Counter()

    def __enter__(self):
        self.plain = {cls: vars(cls).get("__new__") for cls in ours()}
        for cls, new in [(cls, cls.__new__) for cls in self.plain]:
            cls.__new__ = self.counted(new)
        self.profile(self.called)
        return self

    def __exit__(self, *_):
        self.profile(None)
        for cls, plain in self.plain.items():
            if plain is None:
                del cls.__new__
            else:
                cls.__new__ = plain

    def profile(self, called):
        """Has the calls of this thread and of the event loop's told to ``called``."""
        sys.setprofile(called)
        done = threading.Event()
        background().call_soon_threadsafe(lambda: (sys.setprofile(called), done.set()))
        done.wait()

    def counted(self, plain):
        def made(cls, *given, **named):
            if cls in self.plain:
                self.classes[cls] += 1
            if plain is object.__new__:
                return plain(cls)
            return plain(cls, *given, **named)

        return made

    def called(self, frame, event, arg):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith((HERE, PROGRAMS)):
            self.files.add(name)


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
                found.add(type(one))
    return found


def test_one_question_passes_few_forms(monkeypatch):
    doubles = transports()
    work = plan([Question("q", "6 times 7?", "17")], ["lookahead"])
    depths = set()
    init = Answer.__init__

    def noted(answer, *given):
        init(answer, *given)
        depths.update(holding_depth(answer))

    monkeypatch.setattr(Answer, "__init__", noted)
    with Runner(deployment(**doubles).roles, Plan().with_settings(lookahead=Lookahead())) as runner:
        runner.prepare(["lookahead"])
        with Traced() as traced:
            (record,) = runner.run(work)
    assert record["error"] is None and record["accepted"]
    files = sorted(name.removeprefix(HERE).lstrip("/") for name in traced.files)
    names = {cls.__name__: count for cls, count in traced.classes.items()}
    told = (
        f"{len(files)} files: {', '.join(files)}",
        f"{len(names)} classes: {names}",
        f"depth is held by: {', '.join(sorted(cls.__name__ for cls in depths))}",
    )
    sys.stdout.write("\n".join(["", *told, ""]))
