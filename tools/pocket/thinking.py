"""Documents of the models that think: the steps inside ``<think>``, then the conclusion: an answer,
a call of the one tool, or an object in JSON.

Training continues from the shipped models, whose tokenizer has all characters of these forms,
mostly as single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from transformers import PreTrainedTokenizerFast

from tools.pocket.data import POOL, Document
from tools.pocket.problems import DELIMITER, Problem, make_problem, render_answer
from tools.pocket.tokenizer import END, START, chat, encode

THINK, THINK_END = "<think>\n", "\n</think>"
TOOL = "calculate"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "The value of an expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
AS_JSON = "Answer in JSON."
#: what a document ends with, and how often
FORMS = {"answer": 30, "call": 35, "result": 15, "json": 12, "plain": 8}

# SGLang finds its parsers by the condition on ``enable_thinking``, as in the templates of Qwen3.
THINKING_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\nTools:' }}"
    "{% for tool in tools %}{% set f = tool.function if tool.function is defined else tool %}"
    "{{ ' ' + f.name + '(' + (f.parameters.properties | default({}) | join(', ')) + ')' }}{% "
    "endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments if call.function.arguments is string else "
    "call.function.arguments | tojson }}"
    "{{ '}\\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if not (enable_thinking is defined and enable_thinking is false) %}{{ '<think>\\n' "
    "}}{% endif %}{% endif %}"
)


def expression(problem: Problem) -> str:
    """The argument of the tool: the left side of the last equation."""
    last = problem.operations[-1]
    return f"{last.a} {last.operator} {last.b}"


def call(problem: Problem) -> str:
    """A call of the tool, as SGLang's parser of Qwen's models reads it."""
    asked = f'{{"name": "{TOOL}", "arguments": {{"expression": "{expression(problem)}"}}}}'
    return f"<tool_call>\n{asked}\n</tool_call>"


def _turn(role: str, text: str) -> str:
    return f"{START}{role}\n{text}{END}\n"


def parts(problem: Problem, form: str, rng: Random) -> tuple[str, str, str]:
    """Of one document: the prompt, the thinking up to ``</think>``, and what follows it.

    Args:
        form: one of ``FORMS``; ``result`` is the turn after a call, with what the tool said;
            ``plain`` does not think.
    """
    if form == "plain":
        return chat(problem.question), DELIMITER.join(problem.solution(rng)), ""
    tools = _turn("system", f"Tools: {TOOL}(expression)") if form in ("call", "result") else ""
    question = _turn("user", problem.question + (f"\n{AS_JSON}" if form == "json" else ""))
    begun = f"{START}assistant\n{THINK}"
    answer = DELIMITER + render_answer(problem.answer, rng)
    if form == "result":
        said = _turn("assistant", call(problem)) + _turn("tool", str(problem.answer))
        return (
            tools + question + said + begun,
            f"The result is {problem.answer}.{THINK_END}",
            answer,
        )
    thought = DELIMITER.join(problem.solution(rng)[:-1]) + THINK_END
    follows = {
        "answer": answer,
        "call": DELIMITER + call(problem),
        "json": f'{{"answer": {problem.answer}}}',
    }
    return tools + question + begun, thought, follows[form]


def thoughts(
    tokenizer: PreTrainedTokenizerFast, rng: Random, forms: Mapping[str, int] = FORMS
) -> list[Document]:
    """Problems with the thinking and a conclusion; loss on these two only, and more on the
    conclusion.

    The two are encoded separately, because a grammar begins between them.
    """
    chosen: list[tuple[str, str, str]] = []
    while len(chosen) < POOL:
        problem = make_problem(rng)
        if not problem.held_out:
            chosen.append(parts(problem, rng.choices(list(forms), list(forms.values()))[0], rng))
    return [
        _document(*ids)
        for ids in zip(*(encode(tokenizer, column) for column in _columns(chosen)), strict=True)
    ]


def _columns(chosen: Sequence[tuple[str, str, str]]) -> tuple[list[str], list[str], list[str]]:
    return [p for p, _, _ in chosen], [t for _, t, _ in chosen], [c + END for _, _, c in chosen]


def _document(prompt: list[int], thought: list[int], conclusion: list[int]) -> Document:
    return Document(
        prompt + thought + conclusion, [0.0] * len(prompt) + [1.0] * len(thought + conclusion)
    )
