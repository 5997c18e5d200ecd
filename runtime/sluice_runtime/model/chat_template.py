"""Renders chat messages to a prompt, by the model's own Jinja template.

Templates come with the weights and are not trusted, so they run in transformers' sandbox. They were
written for its filters, globals and variables. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import (
    InvalidRequestError,
    ModelLoadError,
    TemplateFailedError,
    TemplateRefusedError,
)
from sluice_runtime.model.files import ModelFiles, read_json, token_text, tokenizer_config

_DUMMY_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_DEFAULT_NAME: Final = "default"
_TOOL_USE_NAME: Final = "tool_use"
_SPECIAL_TOKENS: Final = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip

_GIVEN: Final = ("messages", "tools", "add_generation_prompt", "strftime_now")
"""Variables that every template gets."""

Message = Mapping[str, Any]


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_passed_on"), [], [], body)
        return block.set_lineno(line)

    def _passed_on(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """Replacement for `dict` in templates: a call and `fromkeys`, without other attributes of the
    type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Replacement for `namespace` in templates, which refuses names that lead to Python's
    internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        own, *values = args
        attributes = dict(*values, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(own, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} is not allowed in a namespace")


class _Refusal(jinja2.TemplateError):
    """Raised by a template that refuses its input."""


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def _to_json(
    x: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


_CONTINUED: Final = "<<where the answer goes on>>"
"""Marker put after the content of a message to be continued, only for rendering."""

_PROBE_NAME: Final = "probed_function"
_PROBE_USER: Final = {"role": "user", "content": "a"}
_PROBE_TOOL: Final[Message] = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "b",
        "parameters": {"type": "object", "properties": {"c": {"type": "string"}}},
    },
}


def _probe_calls(count: int) -> list[Message]:
    """An assistant's turn with `count` tool calls, and their results."""
    function = {"name": _PROBE_NAME, "arguments": {"c": "probed value"}}
    ids = [f"probe000{number}" for number in range(count)]
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = [
        {"role": "tool", "tool_call_id": call_id, "name": _PROBE_NAME, "content": "probed result"}
        for call_id in ids
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template with the special tokens it may name."""

    template: jinja2.Template
    special_tokens: Mapping[str, str]
    source: str
    """Source text of the template; it identifies the model family."""
    options: frozenset[str] = frozenset()
    """Other variables that the template reads and that a request may set, such as
    `enable_thinking`."""
    tool_use: ChatTemplate | None = None
    """Template for conversations with tools, where the model has a separate one."""

    def chosen(self, *, with_tools: bool) -> ChatTemplate:
        """The template of a conversation with tools, or without."""
        return self.tool_use if with_tools and self.tool_use is not None else self

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the prompt shows the tools of a request, as far as a trial rendering shows."""
        prompt = self._tried([_PROBE_USER], [_PROBE_TOOL])
        return prompt is None or _PROBE_NAME in prompt

    @cached_property
    def takes_one_call_a_turn(self) -> bool:
        """Whether the template refuses a turn with two calls, and accepts one with one call."""
        one, two = (self._tried([_PROBE_USER, *_probe_calls(count)]) for count in (1, 2))
        return one is not None and two is None

    def hidden(self, *, with_tools: bool) -> frozenset[str]:
        """Parts of a conversation that the template accepts but leaves out of the prompt, found by
        trial: roles whose turns are hidden, or `calls`. `with_tools`: whether the conversation has
        tools."""
        return self._hidden[with_tools]

    @cached_property
    def _hidden(self) -> tuple[frozenset[str], frozenset[str]]:
        """Hidden parts of conversations without tools, then with tools."""
        return self._hidden_beside(None), self._hidden_beside([_PROBE_TOOL])

    def _hidden_beside(self, tools: Sequence[Message] | None) -> frozenset[str]:
        called = self._tried([_PROBE_USER, *_probe_calls(1)], tools)
        texts = {"calls": (called, "probed value"), "tool": (called, "probed result")}
        for role in ("system", "developer"):
            turns = [{"role": role, "content": "probed role"}, _PROBE_USER]
            texts[role] = self._tried(turns, tools), "probed role"
        return frozenset(
            kind
            for kind, (prompt, text) in texts.items()
            if prompt is not None and text not in prompt
        )

    def _tried(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> str | None:
        """The prompt that a trial renders; None if the template refuses the messages."""
        try:
            return self.render(messages, tools, unix_seconds=0.0)
        except (TemplateRefusedError, TemplateFailedError):
            return None

    def unread(self, options: Mapping[str, Any]) -> list[str]:
        """The names of `options` that the template does not read."""
        return sorted(options.keys() - self.options - {*_GIVEN})

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        unix_seconds: float,
        add_generation_prompt: bool = True,
        continues_final: bool = False,
    ) -> str:
        """The prompt, which ends where the assistant's answer begins. `tools`: as in OpenAI's API.
        `options`: the request's values for the template's options; unknown ones are ignored.
        `unix_seconds`: time that the template may write. `continues_final`: the prompt ends in the
        last message, after its content.

        Raises:
            TemplateRefusedError: the template refuses these messages.
            TemplateFailedError: the template cannot be evaluated.
            InvalidRequestError: an option belongs to the server, or makes the template fail.
        """
        read = self._read(options or {})
        if continues_final:
            messages, add_generation_prompt = _marked(messages), False
        variables = {
            "messages": [_with_thinking(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": datetime.fromtimestamp(unix_seconds).astimezone().strftime,
            **self.special_tokens,
        }
        prompt = self._evaluated(variables, read)
        return _before_mark(prompt) if continues_final else prompt

    def _read(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the template reads; refuses those that are the server's."""
        if own := options.keys() & {*_GIVEN}:
            allowed = ", ".join(sorted(self.options)) or "leaving it out"
            raise InvalidRequestError(
                f"chat_template_kwargs: {shown_json(min(own))} is not allowed (a field "
                f"of its own, or given by the server); allowed: {allowed}",
                "chat_template_kwargs",
            )
        return {name: options[name] for name in options.keys() & self.options}

    def _evaluated(self, variables: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        try:
            return self.template.render({**variables, **options})
        except _Refusal as error:
            field = "messages, or chat_template_kwargs" if options else "messages"
            raise TemplateRefusedError(
                f"{field}: the model's chat template refuses them: {error}", "messages"
            ) from None
        except Exception as error:  # a template can raise any exception
            why = f"{type(error).__name__}: {error}"
        if options:
            self._evaluated(variables, {})  # raises where the options are not at fault
            raise InvalidRequestError(
                f"chat_template_kwargs: the model's chat template fails with them: {why}",
                "chat_template_kwargs",
            )
        raise TemplateFailedError(f"the model's chat template fails: {why}")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark behind the content of the last one."""
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}{_CONTINUED}"}]


def _before_mark(prompt: str) -> str:
    """The prompt up to the mark; refuses one without it."""
    before, marked, _ = prompt.rpartition(_CONTINUED)
    if not marked:
        raise InvalidRequestError(
            "continue_final_message: the model's chat template does not show the last message "
            "as it is; allowed: leaving it out",
            "continue_final_message",
        )
    return before


def _with_thinking(message: Message) -> Message:
    """The message with its earlier reasoning also as `thinking`, the name that some templates
    read."""
    if "reasoning_content" not in message:
        return message
    return {"thinking": message["reasoning_content"], **message}


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """The model's chat template, with its separate template for tools if there is one; None if the
    model has no template.

    Raises:
        ModelLoadError: a template cannot be read or compiled; names the file.
    """
    if files.folder is None:
        return compiled_template(_DUMMY_TEMPLATE, {}, files.uri)
    config = tokenizer_config(files)
    sources = _sources(files.folder, config)
    if not sources:
        return None
    named = {
        name: compiled_template(source, config, origin)
        for name, (source, origin) in sources.items()
    }
    default = named.get(_DEFAULT_NAME) or next(iter(named.values()))
    return replace(default, tool_use=named.get(_TOOL_USE_NAME))


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Templates by name, each with its file: from chat_template.jinja and the folder next to it,
    else from tokenizer_config.json, else from chat_template.json."""
    paths = {_DEFAULT_NAME: folder / "chat_template.jinja"} | {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    files = {name: (_text(path), str(path)) for name, path in paths.items() if path.exists()}
    if files:
        return files
    origin, value = folder / "tokenizer_config.json", config.get("chat_template")
    if value is None and (processor := folder / "chat_template.json").exists():
        origin, value = processor, read_json(processor).get("chat_template")
    return {name: (source, str(origin)) for name, source in _by_name(value, str(origin)).items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"model.uri: cannot read {path}: {error}") from None


def _by_name(value: object, origin: str) -> dict[str, str]:
    """Templates by name, from a file's value: null, one text, or a list of names and texts."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT_NAME: value}
    try:
        assert isinstance(value, list)
        named = {entry["name"]: entry["template"] for entry in value}
        assert named
        assert all(isinstance(text, str) for text in (*named, *named.values()))
    except (AssertionError, KeyError, TypeError):
        raise ModelLoadError(
            f"model.uri: chat_template in {origin} is {type(value).__name__}; "
            "allowed: a string or a list of {name, template}"
        ) from None
    return named


def compiled_template(
    source: str, config: Mapping[str, Any], origin: str, tool_use: ChatTemplate | None = None
) -> ChatTemplate:
    """Compiles a template's text. `config`: tokenizer_config.json; `origin`: file of the text, for
    messages.

    Raises:
        ModelLoadError: the text cannot be compiled.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    own = {"raise_exception": _refuse, "dict": _Dict(), "namespace": _Namespace}
    environment.globals.update(own)
    try:
        template = environment.from_string(source)
        read = meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError as error:
        raise ModelLoadError(f"model.uri: chat template in {origin}: {error}") from None
    special = _special_tokens(config)
    options = frozenset(read - environment.globals.keys() - {*_SPECIAL_TOKENS, *special, *_GIVEN})
    return ChatTemplate(template, special, source, options, tool_use)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of special tokens, by the names that templates have for them."""
    extra = config.get("extra_special_tokens")
    named = {**extra} if isinstance(extra, dict) else {}
    named |= {name: config.get(name) for name in _SPECIAL_TOKENS}
    return {name: text for name, token in named.items() if (text := token_text(token))}
