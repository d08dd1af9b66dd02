"""From messages to token ids, by the model's own tokenizer and template.

SGLang's frontend guesses a chat template from the model's path, and its server would read
``<|im_end|>`` in a user's text as the token of that name. Here the tokenizer's own template renders
the prompt, and a user's text never becomes a special token or a marker of the template.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

from lr_sglang.errors import ConfigError
from lr_sglang.steps.step import Markers, markers_of
from lr_sglang.steps.token_text import TokenText

# ``role`` and ``content``, which is a text or a list of OpenAI's text parts, and whatever else a
# template reads, such as ``tool_calls``.
Message = Mapping[str, Any]
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

# Tokens that SGLang treats as an end without any configuration (its
# ``attach_additional_stop_token_ids``).
SGLANG_ENDS = ("<|eom_id|>", "<|content_model_end_sampling|>")
_FILES = ("config.json", "generation_config.json")
# Classes with which a text begins with the beginning-of-sequence token unless ``add_bos_token`` is
# false, whatever tokenizer.json says (SGLang's ``_fix_v5_add_bos_eos_token``).
BEGIN_BY_SETTING = frozenset(
    (
        "LlamaTokenizer",
        "LlamaTokenizerFast",
        "CodeLlamaTokenizer",
        "CodeLlamaTokenizerFast",
        "GemmaTokenizer",
        "GemmaTokenizerFast",
        "CohereTokenizerFast",
    )
)
# The encodings of texts with fewer characters are cached.
SHORT_TEXT = 64
# Texts with more characters are tokenised as a batch, which releases the interpreter's lock: a
# megabyte takes seconds.
LONG_TEXT = 10_000
# A prefix for parts of a text, for tokenizers that add a space before a text.
LEAD = "\n"
# Cache sizes: rendered prompts, and decoded steps, of at most so many tokens each.
CACHED_PROMPTS = 64
CACHED_STEPS = 8192
LONG_STEP = 256


class Tokenizer(Protocol):
    """The methods of a tokenizer that a backend uses.

    Attributes:
        vocabulary: a fingerprint; tokenizers with the same fingerprint give the same ids.
        size: one more than the largest id.
        ends: ids that end a sequence.
        template: the source of its chat template; empty if there is none.
        thinking: how the model marks its thinking.
    """

    vocabulary: str
    size: int
    ends: frozenset[int]
    template: str
    thinking: Markers

    def encode(self, text: str, answer: bool = False) -> tuple[int, ...]:
        """Ids of plain text; nothing in it becomes a special token or a marker of the template.

        They begin with the model's beginning-of-sequence token, if it has one and ``answer`` is
        False.

        Args:
            answer: the text continues the assistant's turn: no token or space is added before it,
                and markers that an assistant writes, as of thinking, become the tokens of their
                names.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens other than those of the markers of thinking."""

    def spell(self, ids: Sequence[int]) -> str:
        """Text of ids, with the names of special tokens."""

    def special(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The special and unknown ids among these, which ``decode`` leaves out."""

    def raw(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt that its client has rendered: special tokens in it are tokens."""

    def chat(
        self, messages: Sequence[Message], answer: bool, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> TokenText:
        """The rendered prompt; with ``answer`` it ends with an open assistant turn.

        Args:
            arguments: of the template, such as ``enable_thinking``; one that it does not know is
                ignored.
        """


class ModelTokenizer:
    """A Hugging Face tokenizer. Thread-safe.

    Args:
        path: folder or hub name of a model or of its tokenizer.
        template: the source of a chat template instead of the model's; empty for the model's.

    Raises:
        ConfigError: when there is no tokenizer at ``path``, or it cannot be read.
    """

    def __init__(self, path: str, template: str = "") -> None:
        self._inner = _from_files(path)
        # The fast tokenizer inside most tokenizers; it is never modified, so it needs no lock.
        self._fast: Any = getattr(self._inner, "backend_tokenizer", None)
        self._lock = threading.Lock()
        vocabulary = sorted(self._inner.get_vocab().items(), key=lambda item: item[1])
        self.vocabulary = hashlib.sha256(repr(vocabulary).encode()).hexdigest()[:16]
        self.size = vocabulary[-1][1] + 1
        added = self._inner.added_tokens_decoder.values()
        own = {
            number
            for number, token in self._inner.added_tokens_decoder.items()
            if str(token) in SGLANG_ENDS
        }
        if self._inner.eos_token_id is not None:
            own.add(int(self._inner.eos_token_id))
        self.ends = ends_of_model(path) | own
        if template:
            self._inner.chat_template = template
        self.template = str(getattr(self._inner, "chat_template", None) or "")
        self._hidden = {
            number for number, token in self._inner.added_tokens_decoder.items() if token.special
        }
        self._hidden |= set(self._inner.all_special_ids)
        self.thinking = markers_of(" ".join([self.template, *map(str, added)]))
        marks = (self.thinking.opens, self.thinking.closes)
        shown = {one for one in self._hidden if _names(self._inner, one, marks)}
        self._hidden -= shown
        # Special tokens of the markers, as in harmony, are part of an answer's text.
        self._marks = re.compile(f"({'|'.join(map(re.escape, marks))})") if shown else None
        self._size = len(self._inner)
        # What is broken in texts of others, and in an assistant's own.
        special = {str(t) for t in added if t.special}
        roles = self._rendered_markers() - set(marks)
        sources = (self.template, *marks)
        named = {name for name in map(str, added) if any(name in one for one in sources)}
        named = {name for name in named if name.strip()}
        self._markers = sorted(special | roles | named, key=len, reverse=True)
        self._special = sorted(special | roles, key=len, reverse=True)
        # Whether an added token may match a text only after normalization, such as to lower case.
        self._normalizes = (
            any(t.normalized for t in added) and getattr(self._fast, "normalizer", None) is not None
        )
        self._rendered = lru_cache(maxsize=CACHED_PROMPTS)(self._render)
        # such as the opening of the judge's reply
        self._encoded = lru_cache(maxsize=64)(self._encode)
        begin = self._inner.bos_token_id
        self._opening = (
            (begin,) if begin is not None and self._inner.encode("")[:1] == [begin] else ()
        )
        before, both, alone = map(tuple, self._encode_each([LEAD, LEAD + "a", "a"]))
        # whether it adds a space before a text
        spaced = both[: len(before)] == before and both[len(before) :] != alone
        self._leading: tuple[int, ...] = before if spaced else ()
        # A step is decoded when it arrives, and again when it is split.
        self._decoded = lru_cache(maxsize=CACHED_STEPS)(self._decode)

    def encode(self, text: str, answer: bool = False) -> tuple[int, ...]:
        return self._encoded(text, answer) if len(text) < SHORT_TEXT else self._encode(text, answer)

    def _encode(self, text: str, answer: bool) -> tuple[int, ...]:
        mark = _unused(text)
        tokens = self._special if answer else self._markers
        parts = self._marks.split(text) if answer and self._marks else [text]
        broken = (self._break(part, tokens, mark) for part in parts[::2])
        safe = "".join(chain.from_iterable(zip_longest(broken, parts[1::2], fillvalue="")))
        return (() if answer else self._opening) + self._encode_parts(safe.split(mark), answer)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoded(tuple(ids)) if len(ids) < LONG_STEP else self._decode(tuple(ids))

    def spell(self, ids: Sequence[int]) -> str:
        return self._decode(tuple(ids), special=True)

    def _decode(self, ids: tuple[int, ...], special: bool = False) -> str:
        if self._marks and not special:
            ids = tuple(one for one in ids if one not in self._hidden)
            special = True
        if self._fast is not None:
            return str(self._fast.decode(list(ids), skip_special_tokens=not special))
        with self._lock:
            options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
            return str(self._inner.decode(list(ids), **options))

    def special(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self._hidden.isdisjoint(ids) and max(ids, default=0) < self._size:
            return ()
        return tuple(one for one in ids if one in self._hidden or one >= self._size)

    def raw(self, text: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._inner.encode(text))

    def chat(
        self, messages: Sequence[Message], answer: bool, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> TokenText:
        said = json.dumps([*map(dict, messages), dict(arguments)], ensure_ascii=False)
        return self._rendered(said, answer)

    def _render(self, said: str, answer: bool) -> TokenText:
        """Renders a conversation in whose texts a mark breaks every special token, then encodes the
        parts between the marks.
        """
        *messages, arguments = json.loads(said)
        mark = _unused(said)

        def safe(value: Any, tokens: Sequence[str]) -> Any:
            match value:
                case str():
                    return self._break(value, tokens, mark)
                case list():
                    return [safe(one, tokens) for one in value]
                case dict():
                    return {safe(name, tokens): safe(one, tokens) for name, one in value.items()}
            return value

        turns = []
        for message in messages:
            content = message["content"]
            if isinstance(content, list) and (message["role"] == "tool" or not self._reads_parts):
                message["content"] = " ".join(part["text"] for part in content)  # as SGLang does
            # role markers are broken in every text; thinking tags in earlier answers are kept for
            # the template
            own = message["role"] == "assistant"
            turns.append(safe(message, self._special if own else self._markers))
        with self._lock:
            text = self._inner.apply_chat_template(
                turns,
                tokenize=False,
                add_generation_prompt=answer,
                **safe(arguments, self._markers),
            )
        return TokenText.of(
            text.replace(mark, ""), self._encode_parts(text.split(mark)), self.vocabulary
        )

    def _rendered_markers(self) -> set[str]:
        """The added tokens, but white space, that the template puts around plain texts.

        Other added tokens are words of any text: Gemma's are runs of newlines, and HTML's tags.
        """
        talk = [{"role": role, "content": "?"} for role in ("system", "user", "assistant", "user")]
        for turns in (talk, talk[1:]):  # some templates take no system's turn
            with suppress(TemplateError, ValueError, TypeError):
                text = self._inner.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=True
                )
                added = {str(token) for token in self._inner.added_tokens_decoder.values()}
                names = self._inner.convert_ids_to_tokens(
                    self._inner.encode(text, add_special_tokens=False)
                )
                return {name for name in names if name in added and name.strip()}
        return set()

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether the template reads a content that is a list of parts."""
        turn = [{"role": "user", "content": [{"type": "text", "text": "a part"}]}]
        try:
            with self._lock:
                text = self._inner.apply_chat_template(turn, tokenize=False)
        except (TemplateError, ValueError, TypeError):
            return False
        return "a part" in text and "'type'" not in text  # which a printed list has

    def _break(self, text: str, tokens: Sequence[str], mark: str) -> str:
        """``text`` with marks, so that none of the parts between them contains one of
        the tokens.
        """
        text = _broken(text, tokens, mark)
        while self._normalizes:
            read = self._fast.encode(text, add_special_tokens=False)
            spans = zip(read.tokens, read.offsets, strict=True)
            begin = next(
                (span[0] for token, span in spans if token in tokens and span[1] - span[0] > 1),
                None,
            )
            if begin is None:
                break
            text = text[: begin + 1] + mark + text[begin + 1 :]
        return text

    def _encode_parts(self, parts: Sequence[str], after: bool = False) -> tuple[int, ...]:
        """Ids of consecutive parts of a text; with ``after``, other text precedes the
        first part.
        """
        if not self._leading:
            return tuple(chain.from_iterable(self._encode_each(parts)))
        each = self._encode_each(
            [LEAD + part if after or number else part for number, part in enumerate(parts)]
        )
        made: list[int] = []
        for number, ids in enumerate(each):
            if after or number:
                size = len(self._leading)
                # if a token spans lead and part, the part is encoded by itself
                ids = (
                    ids[size:]
                    if tuple(ids[:size]) == self._leading
                    else self._encode_each([parts[number]])[0]
                )
            made += ids
        return tuple(made)

    def _encode_each(self, texts: Sequence[str]) -> list[Sequence[int]]:
        try:
            if self._fast is None:
                with self._lock:
                    return [self._inner.encode(text, add_special_tokens=False) for text in texts]
            if sum(map(len, texts)) > LONG_TEXT:
                return [
                    one.ids
                    for one in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)
                ]
            return [self._fast.encode(text, add_special_tokens=False).ids for text in texts]
        except (TypeError, UnicodeEncodeError) as error:
            hint = "decode it with the encoding of its source"
            raise ConfigError(
                "the text has half a surrogate pair, which is no character", hint=hint
            ) from error


def thinks(tokenizer: Tokenizer) -> bool:
    """Whether a model thinks, unless it is asked not to: its template opens the thinking, or names
    a marker for it.
    """
    try:
        begun = tokenizer.chat([{"role": "user", "content": "?"}], True).rstrip()
    except (TemplateError, ValueError, TypeError):  # the template refuses it
        return False
    marks = tokenizer.thinking
    named = marks.opens in tokenizer.template and not begun.endswith(marks.closes)
    return begun.endswith(marks.opens) or named


@lru_cache(maxsize=8)
def load_tokenizer(path: str, template: str = "") -> ModelTokenizer:
    """The tokenizer at ``path``, with the model's chat template or another one; loaded once."""
    return ModelTokenizer(path, template)


def _from_files(path: str) -> Any:
    """A tokenizer of transformers, from ``tokenizer.json`` itself where there is one.

    ``AutoTokenizer`` chooses a class by the model's type, and many classes build the tokenizer
    again, with rules of their own in place of the file's: as a ``LlamaTokenizer`` that of
    DeepSeek-R1-Distill-Llama drops spaces. SGLang repairs most of that after loading.

    Raises:
        ConfigError: as ``ModelTokenizer``.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # takes seconds to import

    try:
        kind = PreTrainedTokenizerFast if _file(path, "tokenizer.json") else AutoTokenizer
        made: Any = kind.from_pretrained(path)
    except Exception as error:  # the library of tokenizers raises no other class
        hint = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"no tokenizer at {path!r} that can be read", hint=hint) from error
    settings = _document(path, "tokenizer_config.json")
    begins = settings.get("add_bos_token") is not False
    if settings.get("tokenizer_class") in BEGIN_BY_SETTING and made.bos_token and begins:
        made.add_bos_token = True
    if fast := getattr(made, "backend_tokenizer", None):  # the file may cut and pad texts
        fast.no_truncation()
        fast.no_padding()
    return made


def resolve(text: str, tokenizer: Tokenizer, begins: bool = False) -> tuple[int, ...]:
    """Token ids of a text: the ids that it carries if they belong to this vocabulary, else a new
    encoding.

    Neighbouring pieces without ids are encoded together. A step of another vocabulary is encoded by
    itself, so that its tokens stay the same when text is added after it. With ``begins`` the text
    begins a prompt.
    """
    ids: list[int] = []
    loose = ""
    for piece in TokenText.wrap(text).pieces:
        if piece.ids is None:
            loose += piece.text
            continue
        ids += tokenizer.encode(loose, not begins) if loose else ()
        ids += (
            piece.ids
            if piece.vocabulary == tokenizer.vocabulary
            else tokenizer.encode(piece.text, True)
        )
        loose = ""
        begins = False
    ids += tokenizer.encode(loose, not begins) if loose else ()
    return tuple(ids)


def render_turns(s: Any, tokenizer: Tokenizer) -> TokenText:
    """Renders the turns of a state (SGLang's executor) by the template, without the text of an open
    assistant turn.

    Raises:
        ConfigError: some text is outside of all turns.
    """
    closed = str.__getitem__(s.text_, slice(None if s.cur_role is None else s.cur_role_begin_pos))
    said = "".join(s.turns)
    if said != closed and "".join(said.split()) != "".join(closed.split()):
        raise ConfigError(
            "some text is outside of any role", hint="put it into sgl.user or another role"
        )
    turns = [
        {"role": m["role"], "content": text} for m, text in zip(s.messages_, s.turns, strict=True)
    ]
    if s.cur_role not in (None, "assistant"):
        turns.append({"role": s.cur_role, "content": s.text_[s.cur_role_begin_pos :]})
    return tokenizer.chat(turns, s.cur_role == "assistant")


def _names(tokenizer: Any, token: int, texts: Sequence[str]) -> bool:
    """Whether a token's name is a part of one of the texts."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    return any(name in text for text in texts)


def _unused(*texts: str) -> str:
    """A private-use character that none of the texts contains.

    Raises:
        ConfigError: the texts contain all of them.
    """
    used = set().union(*texts)
    for c in map(chr, chain(range(0xE000, 0xF8FF), range(0xF0000, 0xFFFFE))):
        if c not in used:
            return c
    raise ConfigError("the text has every private-use character in it")


def _broken(text: str, tokens: Iterable[str], mark: str) -> str:
    """``text`` with ``mark`` after the first character of every occurrence of a token, so that none
    is left whole.
    """
    for token in tokens:
        while len(token) > 1 and token in text:  # repeated, because occurrences may overlap
            text = text.replace(token, token[0] + mark + token[1:])
    return text


def ends_of_model(path: str) -> frozenset[int]:
    """The end ids in a model's ``config.json`` and ``generation_config.json``; empty if there are
    no such files.

    Args:
        path: a folder, or a hub name.
    """
    return frozenset().union(*(_ids(_document(path, name).get("eos_token_id")) for name in _FILES))


def ends_of_server(info: Mapping[str, Any]) -> frozenset[int]:
    """The end ids of a server, from its ``/server_info``: its options, and its model's files if
    they are here.
    """
    model = str(info.get("model_path") or "")
    found = ends_of_model(model) if model and Path(model).is_dir() else frozenset()
    for option, key in (
        ("json_model_override_args", "eos_token_id"),
        ("preferred_sampling_params", "stop_token_ids"),
    ):
        found |= _ids(_object(info.get(option)).get(key))
    return found


def _file(path: str, name: str) -> Path | None:
    """A file of a folder or of a hub's model; None if there is none.

    Raises:
        OSError: the hub does not answer, and the file was not fetched before.
    """
    if Path(path).is_dir():
        file = Path(path, name)
        return file if file.is_file() else None
    from transformers.utils import cached_file

    quietly = ("missing_entries", "gated_repo")
    found = cached_file(path, name, **{f"_raise_exceptions_for_{what}": False for what in quietly})
    return Path(found) if found else None


def _document(path: str, name: str) -> dict[str, Any]:
    try:
        file = _file(path, name)
        return _object(file.read_text("utf-8")) if file else {}
    except (OSError, UnicodeDecodeError):
        return {}


def _object(given: Any) -> dict[str, Any]:
    with suppress(ValueError):
        given = json.loads(given) if isinstance(given, str) else given
    return given if isinstance(given, dict) else {}


def _ids(given: Any) -> frozenset[int]:
    each = given if isinstance(given, list | tuple) else [given]
    return frozenset(one for one in each if isinstance(one, int) and not isinstance(one, bool))
