"""Words of the synthetic problems: names, nouns, sentences of questions, six to eight wordings for
every kind of step.

In a step template ``{e}`` is the equation ``a op b = c``; ``{a}``, ``{b}`` and ``{c}`` are its
numbers; ``{who}``, ``{other}``, ``{thing}`` and ``{box}`` are words of the problem. Every step
template holds ``{e}`` exactly once, so that the meaning of a step can be read back from its text.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "Ava", "Ben", "Carl", "Dina", "Emma", "Finn", "Gina", "Hugo", "Ivy", "Jack",
    "Kira", "Liam", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Will",
)  # fmt: skip
THINGS: Final = (
    "apples", "books", "cards", "coins", "shells", "stamps",
    "marbles", "stickers", "pencils", "cookies", "beads", "toys",
)  # fmt: skip
GOODS: Final = ("pens", "cups", "hats", "toys", "books", "balls", "lamps", "mugs")
BOXES: Final = ("boxes", "bags", "packs", "jars")
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday")

FIRST_LEADS: Final = ("", "", "", "First, ", "To start, ")
LEADS: Final = ("", "", "", "", "Next, ", "Then ", "So ", "After that, ")

#: kind of step -> operator
OPERATORS: Final = {
    "gain": "+", "lose": "-", "grow": "*", "pack": "*", "share": "/",
    "more": "+", "fewer": "-", "times": "*", "sum": "+",
    "price": "*", "bill": "+", "left": "-", "hours": "+", "pay": "*", "money": "+",
}  # fmt: skip

#: sentence of a question -> its wordings
SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    "start": ("{who} has {x} {thing}.", "{who} starts with {x} {thing}."),
    "gain": (
        "{who} buys {b} more {thing}.",
        "{other} gives {who} {b} {thing}.",
        "Then {who} finds {b} {thing}.",
    ),
    "lose": (
        "{who} gives {b} {thing} to {other}.",
        "{who} loses {b} {thing}.",
        "Then {who} sells {b} of the {thing}.",
    ),
    "grow": ("{who} trades and now has {b} times as many {thing}.",),
    "pack": (
        "{who} buys {a} {box} with {b} {thing} each.",
        "{other} brings {a} {box} with {b} {thing} each.",
    ),
    "share": ("{who} shares the {thing} equally among {b} friends.",),
    "how many now": (
        "How many {thing} does {who} have now?",
        "How many {thing} does {who} have at the end?",
    ),
    "how many each": ("How many {thing} does each friend get?",),
    "first": ("{who} has {x} {thing}.",),
    "more": ("{who} has {b} more {thing} than {other}.",),
    "fewer": ("{who} has {b} fewer {thing} than {other}.",),
    "times": ("{who} has {b} times as many {thing} as {other}.",),
    "how many": ("How many {thing} does {who} have?",),
    "how many together": (
        "How many {thing} do {list} have together?",
        "How many {thing} do {list} have in total?",
    ),
    "costs": ("{Thing} cost {price} dollars each.",),
    "buys": ("{who} buys {list}.", "{who} orders {list}."),
    "had": ("{who} had {x} dollars.",),
    "how much is it": ("How much does {who} pay?", "How many dollars is the bill?"),
    "how much is left": ("How much money does {who} have left?", "How many dollars are left?"),
    "works": ("{who} works {list}.",),
    "wage": ("The job pays {b} dollars an hour.", "{who} earns {b} dollars an hour."),
    "spends": ("{who} pays {b} dollars for a {object}.", "Then {who} spends {b} dollars."),
    "receives": ("{other} gives {who} {b} dollars.", "{who} finds {b} dollars."),
    "how much": ("How much money does {who} have?", "How many dollars does {who} have now?"),
}

#: kind of step -> its wordings
STEPS: Final[dict[str, tuple[str, ...]]] = {
    "gain": (
        "{who} now has {e} {thing}.",
        "Adding {b} to {a} gives {e} {thing}.",
        "{who} had {a} and got {b} more, so that is {e}.",
        "We add the {b} new {thing}: {e}.",
        "The count goes up by {b}. That makes {e} {thing}.",
        "With {b} more {thing}, {who} has {e}.",
        "After adding {b}, the number of {thing} is {e}.",
        "To find the new count: {e}. {who} has {c} {thing}.",
    ),
    "lose": (
        "{who} now has {e} {thing}.",
        "Taking {b} from {a} leaves {e} {thing}.",
        "{who} had {a} and {b} are gone, so that is {e}.",
        "We subtract the {b} {thing}: {e}.",
        "The count goes down by {b}. That leaves {e} {thing}.",
        "With {b} fewer {thing}, {who} has {e}.",
        "After removing {b}, the number of {thing} is {e}.",
        "To find the new count: {e}. {who} has {c} {thing}.",
    ),
    "grow": (
        "{who} now has {e} {thing}.",
        "Multiplying {a} by {b} gives {e} {thing}.",
        "{who} had {a} and now has {b} times that, so that is {e}.",
        "We multiply by {b}: {e} {thing}.",
        "The count is {b} times as big. That makes {e} {thing}.",
        "To find the new count: {e}. {who} has {c} {thing}.",
    ),
    "pack": (
        "{a} {box} with {b} each make {e} {thing}.",
        "That is {e} {thing} in the {box}.",
        "Each of the {a} {box} holds {b}, so that is {e}.",
        "We multiply the {box} by the {thing} in each: {e}.",
        "The {box} hold {e} {thing}.",
        "To count the {thing} in the {box}: {e}. That is {c} {thing}.",
    ),
    "share": (
        "Each one gets {e} {thing}.",
        "Dividing {a} by {b} gives {e} {thing} for each.",
        "We split {a} into {b} equal parts: {e} {thing}.",
        "Shared by {b}, that is {e} {thing} each.",
        "There are {a} {thing} for {b} friends, so each gets {e}.",
        "To find one share: {e}. A share is {c} {thing}.",
    ),
    "more": (
        "{who} has {e} {thing}.",
        "{who} has {b} more than {other}, so that is {e}.",
        "Adding {b} to {a}, {who} has {e} {thing}.",
        "Since {other} has {a} {thing}, {who} has {e}.",
        "For {who}, we add {b} to the {a} of {other}: {e}.",
        "To find the {thing} of {who}: {e}. {who} has {c} {thing}.",
    ),
    "fewer": (
        "{who} has {e} {thing}.",
        "{who} has {b} fewer than {other}, so that is {e}.",
        "Taking {b} from {a}, {who} has {e} {thing}.",
        "Since {other} has {a} {thing}, {who} has {e}.",
        "For {who}, we subtract {b} from the {a} of {other}: {e}.",
        "To find the {thing} of {who}: {e}. {who} has {c} {thing}.",
    ),
    "times": (
        "{who} has {e} {thing}.",
        "{who} has {b} times as many as {other}, so that is {e}.",
        "Multiplying {a} by {b}, {who} has {e} {thing}.",
        "Since {other} has {a} {thing}, {who} has {e}.",
        "For {who}, we take {b} times the {a} of {other}: {e}.",
        "To find the {thing} of {who}: {e}. {who} has {c} {thing}.",
    ),
    "sum": (
        "Adding them, we get {e} {thing}.",
        "Together that makes {e} {thing}.",
        "The sum so far is {e} {thing}.",
        "We add {b} to the total: {e}.",
        "In total this gives {e} {thing}.",
        "To find the sum: {e}. That is {c} {thing}.",
    ),
    "price": (
        "The {thing} cost {e} dollars.",
        "{a} {thing} at {b} dollars each cost {e} dollars.",
        "For the {thing}, the price is {e} dollars.",
        "Each of the {a} {thing} is {b} dollars, so that is {e}.",
        "We multiply the {thing} by their price: {e}.",
        "To find the cost of the {thing}: {e}. They cost {c} dollars.",
    ),
    "bill": (
        "The cost is now {e} dollars.",
        "Adding them, the bill is {e} dollars.",
        "Together that makes {e} dollars.",
        "We add {b} to the bill: {e}.",
        "{a} dollars and {b} dollars make {e} dollars.",
        "To find the bill: {e}. The bill is {c} dollars.",
    ),
    "left": (
        "{who} has {e} dollars left.",
        "Taking {b} from {a} leaves {e} dollars.",
        "The money left is {e} dollars.",
        "After paying {b} dollars, {who} has {e}.",
        "We subtract {b} from {a}: {e} dollars.",
        "To find what is left: {e}. {who} has {c} dollars.",
    ),
    "hours": (
        "{who} worked {e} hours so far.",
        "Adding the hours gives {e}.",
        "The hours so far are {e}.",
        "We add {b} hours to {a} hours: {e}.",
        "With {b} more hours, that makes {e} hours.",
        "To find the hours: {e}. That is {c} hours.",
    ),
    "pay": (
        "{who} earned {e} dollars.",
        "{a} hours at {b} dollars an hour pay {e} dollars.",
        "For {a} hours of work, {who} gets {e} dollars.",
        "We multiply the hours by the pay: {e}.",
        "The pay is {e} dollars.",
        "To find the pay: {e}. {who} earned {c} dollars.",
    ),
    "money": (
        "{who} now has {e} dollars.",
        "Adding {b} to {a} gives {e} dollars.",
        "With {b} dollars more, {who} has {e}.",
        "We add the {b} dollars: {e}.",
        "The money is now {e} dollars.",
        "To find the money: {e}. {who} has {c} dollars.",
    ),
}

ANSWERS: Final = (
    "The answer is \\boxed{{{c}}}.",
    "So the final answer is \\boxed{{{c}}}.",
    "Therefore the answer is \\boxed{{{c}}}.",
    "This gives \\boxed{{{c}}}.",
    "Hence we get \\boxed{{{c}}} as the answer.",
)

#: operator -> other wordings of a step, which only ``draft-words`` writes: the same meaning, hardly
#: a token in common
OTHER_STEPS: Final[dict[str, tuple[str, ...]]] = {
    "+": (
        "Now {a} and {b} make {e} all in all.",
        "Putting {b} with {a} we come to {e}.",
        "The new total comes to {e} by now.",
    ),
    "-": (
        "From {a} we take {b}: {e} are left over.",
        "Taking off {b} we come to {e} left.",
    ),
    "*": (
        "{a} groups of {b} come to {e} altogether.",
        "So it grows to {e}, all counted.",
        "{b} for every one of {a}: {e} in all.",
    ),
    "/": (
        "So everyone gets {e} of them.",
        "In {b} equal parts, each is {e}.",
    ),
}

OTHER_ANSWERS: Final = (
    "That is what was asked: \\boxed{{{c}}}.",
    "All in all we end with \\boxed{{{c}}} here.",
    "Done, and it is \\boxed{{{c}}}.",
)
