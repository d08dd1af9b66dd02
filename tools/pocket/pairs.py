"""Labelled pairs of steps for the judge: same meaning in two wordings, or one of many kinds of near
miss.
"""

from __future__ import annotations

from random import Random

from tools.pocket.meaning import same_meaning
from tools.pocket.problems import (
    Operation,
    Problem,
    compute,
    make_problem,
    render_answer,
    with_numbers,
)
from tools.pocket.wordings import NAMES, OPERATORS, STEPS, THINGS

#: how a second step is made to differ, and how often
MISSES = {
    "result": 6,
    "operand": 6,
    "both": 3,
    "swap": 3,
    "operator": 4,
    "other": 4,
    "boxed": 2,
    "double": 2,
    "garbled": 2,
}
NEIGHBOURS = (-3, -2, -1, 1, 2, 3)


def near(rng: Random, number: int) -> int:
    """A positive number easily mistaken for ``number``: close by, ten off, a digit changed or
    digits reversed.
    """
    digits = str(number)
    while True:
        way = rng.random()
        if way < 0.4:
            other = number + rng.choice(NEIGHBOURS)
        elif way < 0.65:
            other = number + rng.choice((-20, -10, 10, 20))
        elif way < 0.9:
            place = rng.randrange(len(digits))
            other = int(digits[:place] + str(rng.randrange(10)) + digits[place + 1 :])
        elif way < 0.95:
            other = int(digits[::-1])
        else:
            other = rng.randint(1, 120)
        if other != number and other > 0:
            return other


def _other_operator(rng: Random, o: Operation) -> Operation:
    kind = rng.choice([k for k in STEPS if OPERATORS[k] != o.operator])
    names = rng.sample(NAMES, 2)
    words = {
        "who": names[0],
        "other": names[1],
        "thing": rng.choice(THINGS),
        "box": "boxes",
    } | o.words
    result = o.result if rng.random() < 0.3 else max(0, compute(OPERATORS[kind], o.a, o.b))
    return Operation(kind, o.a, o.b, result, words)


def _garble(rng: Random, text: str) -> str:
    way = rng.random()
    if way < 0.2:
        return ""
    if way < 0.6:  # cut before the equation is complete
        return (
            text[: rng.randrange(max(1, text.find("=")))]
            if "=" in text
            else text[: rng.randrange(len(text) // 2)]
        )
    words = [w for w in text.split() if not any(c.isdigit() for c in w)]
    rng.shuffle(words)
    return " ".join(words)


def _miss(rng: Random, problem: Problem, o: Operation, first: bool) -> str:
    """The text of a step that resembles ``o`` and does not mean the same (the label is checked by
    the caller).
    """
    way = rng.choices(list(MISSES), list(MISSES.values()))[0]
    if way == "result":
        o = with_numbers(o, o.a, o.b, near(rng, o.result))
    elif way == "operand":  # one operand wrong, the result computed from it or not
        a, b = (near(rng, o.a), o.b) if rng.random() < 0.5 else (o.a, near(rng, o.b))
        o = with_numbers(
            o, a, b, max(0, compute(o.operator, a, b)) if rng.random() < 0.6 else o.result
        )
    elif way == "both":  # both operands wrong, the result kept
        a = near(rng, o.a)
        o = with_numbers(
            o,
            a,
            max(1, compute("-", o.result, a)) if o.operator == "+" else near(rng, o.b),
            o.result,
        )
    elif way == "swap" and o.operator in "-/":
        o = with_numbers(o, o.b, o.a, o.result)
    elif way == "operator":
        o = _other_operator(rng, o)
    elif way == "boxed":
        return render_answer(o.result, rng)
    elif way == "double":
        return o.render(rng, first) + " " + rng.choice(problem.operations).render(rng)
    elif way == "garbled":
        return _garble(rng, o.render(rng, first))
    else:
        o = rng.choice(problem.operations)
    return o.render(rng, first)


def _answer_pair(rng: Random, problem: Problem) -> tuple[str, str]:
    n = problem.answer if rng.random() < 0.85 else near(rng, problem.answer)
    first = render_answer(n, rng)
    way = rng.random()
    if way < 0.5:
        return first, render_answer(n, rng)
    if way < 0.85:
        return first, render_answer(near(rng, n), rng)
    return first, rng.choice(problem.operations).render(rng) if way < 0.95 else _garble(rng, first)


def make_pair(rng: Random, held_out: bool = False) -> tuple[str, str, bool]:
    """Two steps and whether they mean the same; about half do. Order is random: nothing depends on
    who wrote which.
    """
    problem = make_problem(rng)
    while problem.held_out != held_out:
        problem = make_problem(rng)
    if rng.random() < 0.15:
        first, second = _answer_pair(rng, problem)
    else:
        index = rng.randrange(len(problem.operations))
        o = problem.operations[index]
        if rng.random() < 0.15:  # two models may make the same mistake
            o = with_numbers(o, o.a, o.b, near(rng, o.result))
        first = o.render(rng, first=index == 0)
        if rng.random() < 0.5:
            swapped = o.operator in "+*" and rng.random() < 0.1
            second = (with_numbers(o, o.b, o.a, o.result) if swapped else o).render(
                rng, first=index == 0
            )
        else:
            second = _miss(rng, problem, o, first=index == 0)
    if rng.random() < 0.5:
        first, second = second, first
    return first, second, same_meaning(first, second)
