"""Requests for tools and forms to a target that thinks: by lookahead reasoning, and after
``</think>`` by it alone.
"""

import json
from contextlib import ExitStack
from functools import cache

import pytest
from jinja2.exceptions import TemplateError

from lr_sglang.engine.client import status_error
from lr_sglang.engine.tokenizer import NO_ARGUMENTS
from lr_sglang.errors import RuntimeRefused
from lr_sglang.sglang_api.plugin_protocol import place_of
from lr_sglang.steps.step import DELIMITER, MARKER_FAMILIES
from lr_sglang.steps.token_text import TokenText
from tests.endpoint import ASK, SERVICE, TOOL, is_documented, serving
from tests.scripted import END, CharTokenizer, ScriptedTransport, deployment, set_facts
from tests.serving import until

THOUGHT = ["Well, 2 + 3.", "It is 5.\n</think>", "Nobody asked for this."]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
BAD = "[0-9"
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


class Target(ScriptedTransport):
    """Thinks, and then writes what it is asked for; renders, compiles grammars and finds calls, as
    SGLang's server does.
    """

    def __init__(self, thought, marked=False, opened=""):
        self.asked, self.broken, self.opened = [], "", opened
        whole = opened + ("<think>" if marked else "") + DELIMITER.join(thought) + chr(END)

        def write(text, sampling):
            if text.endswith("</think>"):
                grammar = sampling.get("json_schema") or sampling.get("regex")
                return (f'{{"n": 5}} by {grammar}' if grammar else f"\n\nLet me see.{CALL}") + chr(
                    END
                )
            return whole[len(text) :] if whole.startswith(text) else "lost" + chr(END)

        super().__init__(write)

    async def post(self, path, body, timeout=0.0):
        self.asked.append((path, body))
        if path == self.broken:
            raise RuntimeRefused(f"{path}: 500", role="target")
        if path == "/tokenize":
            said = "".join(
                str(message["content"] or message["tool_calls"]) for message in body["messages"]
            )
            return {
                "tokens": [
                    1,
                    *map(ord, said + str(body.get("tools", ""))),
                    2,
                    1,
                    *map(ord, self.opened),
                ]
            }
        if path == "/generate":
            sampling = body["sampling_params"]
            if sampling.get("regex") == BAD or BAD in sampling.get("json_schema", ""):
                raise status_error(400, f"Failed to compile: {BAD}", path, "target")
            return {}
        text, _, call = body["text"].partition("<tool_call>")
        whole = call.endswith("</tool_call>")
        calls = [json.loads(call.removesuffix("</tool_call>"))] if whole else []
        found = [
            {"tool_index": -1, "name": one["name"], "parameters": json.dumps(one["arguments"])}
            for one in calls
        ]
        return {"normal_text": text, "calls": found}

    async def forward(self, post, request, timeout):
        raise RuntimeRefused("passed on", role="target")
        yield b""


class Opens(CharTokenizer):
    """Of a model whose template opens the thinking, or leaves that to the model."""

    def __init__(self, opened="", template=""):
        self.opened, self.template = opened, template

    def chat(self, messages, answer, arguments=NO_ARGUMENTS):
        if self.template == "broken":
            raise TemplateError("it is")
        rendered = super().chat(messages, answer)
        opened = "" if arguments.get("enable_thinking") is False else self.opened
        return rendered + TokenText.of(opened, self.encode(opened), self.vocabulary)


HARMONY = MARKER_FAMILIES[0]


class Harmony(Opens):
    """Of gpt-oss: the model opens a channel for its thinking."""

    thinking = HARMONY


@pytest.fixture(scope="module")
def thinker():
    """An endpoint, by what its target writes and how its template begins an answer."""
    with ExitStack() as stack:

        @cache
        def make(
            thought=tuple(THOUGHT),
            marked=False,
            opened="",
            template="",
            parser="plain",
            service=SERVICE,
        ):
            target, draft = Target(thought, marked, opened), Target(thought, marked, opened)
            judge = ScriptedTransport(lambda *_: "a")
            roles = deployment(target=target, draft=draft, judge=judge).roles
            set_facts(roles["target"], tool_call_parser=parser)
            kind = Harmony if HARMONY.opens in template else Opens
            for backend in roles.values():
                backend.tokenizer = kind(opened, template)
            one = stack.enter_context(serving(roles, service))
            one.target = target
            return one

        def fresh(**how):
            one = make(**how)
            one.target.requests.clear()
            one.target.asked.clear()
            return one

        yield fresh


ON = SERVICE.replace(reasoning="on")
WAYS = [
    {"service": ON},
    {"opened": "<think>"},
    {"marked": True, "template": "... <think> ..."},
]


@pytest.mark.parametrize("way", WAYS, ids=["by option", "by the prompt", "by the model"])
def test_it_thinks_with_lookahead_and_answers_by_the_targets_grammar(thinker, way):
    one = thinker(**way)
    # in which no draft is late
    response = one.ask(response_format=FORM, lookahead={"schedule": "sync"})
    answer = response.json()
    assert response.headers["x-lookahead-why"] == "response_format"
    (choice,) = answer["choices"]
    message, about = choice["message"], answer["lookahead"]
    assert (
        message["reasoning_content"] == "Well, 2 + 3.\n\nIt is 5.\n"
        and choice["finish_reason"] == "stop"
    )
    assert message["content"] == f'{{"n": 5}} by {json.dumps(SCHEMA, separators=(",", ":"))}'
    assert about["mode"] == "lookahead" and about["why"] == ["response_format"]
    assert one.roles["draft"].transport.requests and about["alpha"] == 1
    marker = len("<think>") if way.get("marked") else 0
    thought = marker + len("Well, 2 + 3.\n\nIt is 5.\n</think>")
    ended = 1  # the end of sequence counts, as on the target
    assert answer["usage"]["completion_tokens"] == thought + len(message["content"]) + ended
    assert choice["matched_stop"] == END
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
    concluding = one.target.requests[-1]
    assert (
        concluding["text"].endswith("It is 5.\n</think>")
        and "stop" not in concluding["sampling_params"]
    )


@pytest.mark.parametrize("stream", [False, True])
def test_harmonys_channels_are_reasoning_and_content(thinker, stream):
    """Both by lookahead; with tools, which have a channel of their own, the target is alone."""
    said = f"{HARMONY.opens}Well, 2 + 3.\n\nIt is 5.{HARMONY.closes}So 5.\n\nIndeed."
    one = thinker(thought=tuple(said.split(DELIMITER)), template=f"... {HARMONY.opens} ...")
    choice, *_ = one.answer(stream, lookahead={"schedule": "sync"})
    assert choice["reasoning_content"] == "Well, 2 + 3.\n\nIt is 5."
    assert choice["content"] == "So 5.\n\nIndeed."
    assert one.roles["draft"].transport.requests
    assert one.ask(tools=[TOOL]).status_code == 502 and not one.target.asked


@pytest.mark.parametrize("mode", ["lossless", "lookahead"])
def test_the_conclusion_draws_on_from_the_end_of_the_thinking(thinker, mode):
    """With the request's own seed, as the target that is asked directly draws all of it."""
    one = thinker(service=ON)
    one.ask(response_format=FORM, seed=7, n=2, lookahead={"mode": mode, "schedule": "sync"})
    drawn = [
        (
            sent["sampling_params"]["sampling_seed"],
            place_of(sent["sampling_params"].get("custom_params")),
        )
        for sent in one.target.requests
        if sent["text"].endswith("</think>")
    ]
    thought = len("Well, 2 + 3.\n\nIt is 5.\n</think>")
    assert sorted(drawn) == [(7, thought), (8, thought)]
    thinking = {
        sent["sampling_params"]["sampling_seed"]
        for sent in one.target.requests
        if not sent["text"].endswith("</think>")
    }
    assert thinking == {7, 8} if mode == "lossless" else not thinking & {7, 8}


@pytest.mark.parametrize(("begun", "own"), [("Well.</think>\n\n", True), ("Well.\n\n", False)])
def test_after_a_beginning_that_ends_the_thinking_the_answer_is_the_targets(thinker, begun, own):
    one = thinker(thought=(begun.rstrip(), "It is 5.", "Indeed."), opened="<think>")
    asked = [*ASK["messages"], {"role": "assistant", "content": begun}]
    answer = one.ask(
        messages=asked, continue_final_message=True, lookahead={"schedule": "sync"}
    ).json()
    about, message = answer["lookahead"], answer["choices"][0]["message"]
    assert message["content" if own else "reasoning_content"].endswith("It is 5.\n\nIndeed.")
    assert bool(about["judged_tokens"]) != own


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answers", [1, 2])
def test_calls_of_tools_are_found_in_what_follows_the_thinking(thinker, stream, answers):
    one = thinker(service=ON)
    choice, *_ = one.answer(stream, tools=[TOOL], n=answers)
    assert choice["finish_reason"] == "tool_calls" and choice["content"] == "Let me see."
    assert choice["reasoning_content"] == "Well, 2 + 3.\n\nIt is 5.\n"
    (call,) = choice["tool_calls"]
    assert not stream or call["index"] == 0
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert call["function"]["name"] == "add" and json.loads(call["function"]["arguments"]) == {
        "a": 2
    }
    path, parsed = one.target.asked[-1]
    assert (
        path == "/parse_function_call"
        and parsed["tool_call_parser"] == "plain"
        and parsed["tools"] == [TOOL]
    )


def test_both_share_the_limit_of_tokens(thinker):
    one = thinker(service=ON)
    thought = len("Well, 2 + 3.\n\nIt is 5.\n</think>")
    for most in (10, thought - 1, thought, thought + 4):
        answer = one.ask(regex="5", max_tokens=most).json()
        usage, choice = answer["usage"], answer["choices"][0]
        assert choice["finish_reason"] == "length" and usage["completion_tokens"] == most
        assert usage["reasoning_tokens"] == min(most, thought)
        written = choice["message"]["reasoning_content"] + (choice["message"]["content"] or "")
        assert len(written) >= most - len("</think>"), "nothing is held back"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_is_no_content(thinker, stream):
    one = thinker(service=ON)
    cut = len("Well, 2 + 3.\n\nIt is 5.\n</think>\n\nLet me see.<tool_call>{")
    for asked in ({"max_tokens": cut}, {"stop": ['"add"']}):
        choice, *_ = one.answer(stream, tools=[TOOL], **asked)
        assert choice["finish_reason"] == ("length" if "max_tokens" in asked else "stop")
        assert choice["content"] == "Let me see." and not choice.get("tool_calls")


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": BAD},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": BAD}}}},
    ],
    ids=["regex", "schema"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_is_none_is_refused_before_the_first_thought(thinker, asked, stream):
    one = thinker(service=ON)
    error = is_documented(one.ask(stream=stream, **asked), 400)
    assert BAD in error["message"] and not one.target.requests
    assert one.ask(regex=r"\p{L}+").status_code == 200, "which Python does not know"


def test_stops_apply_to_the_content_only_where_the_operator_says_so(thinker):
    one = thinker(service=ON.replace(stop_in_thinking=False))
    for stream in (False, True):
        choice, *_ = one.answer(stream, regex="5", stop=["5"])
        assert choice["reasoning_content"] == "Well, 2 + 3.\n\nIt is 5.\n"
        assert choice["content"] == '{"n": ' and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("stop", "thought", "said"), [("5.", "Well, 2 + 3.\n\nIt is ", None), ("see", None, "Let me ")]
)
def test_a_stop_string_ends_either(thinker, stop, thought, said):
    one = thinker(service=ON)
    choice = one.ask(tools=[TOOL], stop=stop).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "stop" and "tool_calls" not in message
    assert message["reasoning_content"] == (thought or "Well, 2 + 3.\n\nIt is 5.\n")
    assert (message["content"] or None) == said
    until(lambda: one.engine.idle, 10)


PASSED_ON = {
    "a tool must be called": {"tools": [TOOL], "tool_choice": "required"},
    "a strict tool": {
        "tools": [{"type": "function", "function": {**TOOL["function"], "strict": True}}]
    },
    "one call at a time": {"tools": [TOOL], "parallel_tool_calls": False},
    "a tool that is none": {"tools": ["add"]},
    "tools and a form": {"tools": [TOOL], "response_format": FORM},
    "two grammars": {"regex": "5", "response_format": FORM},
    "a regex that is none": {"regex": ["5"]},
    "a form that is none": {"response_format": {"type": "json_schema"}},
    "SGLang's own form": {"response_format": {"type": "structural_tag"}},
    "something else besides": {"response_format": FORM, "logprobs": True},
    "an image": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ]
    },
    "a begun answer": {
        "messages": [*ASK["messages"], {"role": "assistant", "content": "Let"}],
        "tools": [TOOL],
    },
    "no lookahead": {"regex": "5", "lookahead": {"mode": "autoregressive"}},
    "no thinking": {"regex": "5", "chat_template_kwargs": {"enable_thinking": False}},
    "no effort": {"tools": [TOOL], "reasoning_effort": "none"},
    "a least length": {"regex": "5", "min_tokens": 3},
}


# A target that does not think, or finds no calls, and what it is asked.
ALONE = {
    "no marker": ({}, {"regex": "5", "n": 2}),
    "no template": ({"template": "broken"}, {"regex": "5", "n": 2}),
    "closed in the prompt": (
        {"opened": "<think>\n\n</think>\n\n", "template": "<think>"},
        {"regex": "5", "n": 2},
    ),
    "off": (
        {"opened": "<think>", "service": SERVICE.replace(reasoning="off")},
        {"regex": "5", "n": 2},
    ),
    "too many": (
        {"opened": "<think>", "service": SERVICE.replace(concurrency=1)},
        {"regex": "5", "n": 2},
    ),
    "finds no calls": ({"service": ON, "parser": ""}, {"tools": [TOOL], "tool_choice": "auto"}),
    "finds none, none wanted": (
        {"service": ON, "parser": ""},
        {"tools": [TOOL], "tool_choice": "none"},
    ),
    **{name: ({"service": ON}, asked) for name, asked in PASSED_ON.items()},
}


@pytest.mark.parametrize(("way", "asked"), ALONE.values(), ids=ALONE)
def test_the_rest_goes_to_the_target_alone(thinker, way, asked):
    one = thinker(**way)
    # it has no such route here
    assert one.ask(**asked).status_code == 502 and not one.target.requests


def test_a_conversation_that_the_target_cannot_render_is_the_targets(thinker):
    one = thinker(service=ON)
    one.target.broken = "/tokenize"
    assert one.ask(tools=[TOOL]).status_code == 502 and not one.target.requests
    one.target.broken = "/parse_function_call"
    is_documented(one.ask(tools=[TOOL]), 502, "target_failed")
    events = list(one.stream(tools=[TOOL]))
    one.target.broken = ""
    assert events[-2]["error"]["code"] == "target_failed" and events[-1] == "[DONE]"


def test_arguments_that_the_server_was_started_with_are_defaults(thinker):
    one = thinker(opened="<think>\n")
    target = one.roles["target"]
    set_facts(target, template_defaults={"enable_thinking": False})
    try:
        on = {"enable_thinking": True}
        for wish, thinks in (({}, False), ({"chat_template_kwargs": on}, True)):
            one.target.requests.clear()
            one.ask(**wish)
            prompt = "".join(map(chr, one.target.requests[0]["input_ids"]))
            assert prompt.endswith("<think>\n") is thinks
    finally:
        set_facts(target, template_defaults={})


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_stays_in_the_content_or_comes_whole_where_that_is_asked_for(thinker, stream):
    one = thinker(opened="<think>\n")
    thought, rest = "Well, 2 + 3.\n\nIt is 5.\n", "Nobody asked for this."
    choice, *_ = one.answer(stream, separate_reasoning=False)
    assert choice["content"] == f"{thought}</think>\n\n{rest}"
    assert not choice.get("reasoning_content")
    choice, *_ = one.answer(stream, stream_reasoning=False)
    assert choice["reasoning_content"] == thought and choice["content"] == rest
    if stream:
        chunks = [e for e in one.stream(stream_reasoning=False) if e != "[DONE]"]
        assert sum("reasoning_content" in e["choices"][0]["delta"] for e in chunks) == 1
