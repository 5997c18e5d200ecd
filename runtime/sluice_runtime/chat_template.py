"""Turns chat messages into the prompt text a model was trained on, by its own Jinja template.

The template comes with the weights, so it runs in jinja2's immutable sandbox. Knows neither tokens
nor requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import meta
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from sluice_contract import http_errors

from sluice_runtime.errors import InvalidRequestError, ModelLoadError
from sluice_runtime.model_files import ModelFiles, read_json

_DUMMY_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_DEFAULT_NAME: Final = "default"
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")

_GIVEN: Final = ("messages", "tools", "add_generation_prompt", "strftime_now")
"""What every template is given."""

Message = Mapping[str, Any]


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template with the special tokens it may name."""

    template: jinja2.Template
    special_tokens: Mapping[str, str]
    source: str
    """Its text: what a model family is known by."""
    shows_tools: bool = True
    """Whether it reads the tools of a request at all."""
    options: frozenset[str] = frozenset()
    """What else it reads, which is a request's to give: `enable_thinking`, say."""

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
    ) -> str:
        """The prompt, ending where the assistant's answer begins. `tools` are OpenAI's objects,
        `options` the request's values of some of the template's; others it does not read.
        `unix_seconds`: the time that a template may write.

        Raises:
            InvalidRequestError: the template refuses these messages, or an option is the server's.
        """
        given = options or {}
        if own := given.keys() & {*_GIVEN}:
            allowed = ", ".join(sorted(self.options)) or "leaving it out"
            raise InvalidRequestError(
                f"chat_template_kwargs: {http_errors.shown_json(min(own))} is not allowed (a field "
                f"of its own, or given by the server); allowed: {allowed}",
                "chat_template_kwargs",
            )
        now = datetime.fromtimestamp(unix_seconds).astimezone()
        try:
            return self.template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                strftime_now=now.strftime,
                **self.special_tokens,
                **{name: given[name] for name in given.keys() & self.options},
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            field = "messages, or chat_template_kwargs" if given else "messages"
            raise InvalidRequestError(
                f"{field}: the model's chat template refuses them: {error}", "messages"
            ) from None


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """The model's template, None when it has none: chat_template.jinja, else tokenizer_config's.

    Raises:
        ModelLoadError: the template cannot be compiled; names the file.
    """
    if files.folder is None:
        return _compile(_DUMMY_TEMPLATE, {}, files.uri)
    config_path = files.folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    own_file = files.folder / "chat_template.jinja"
    if own_file.exists():
        return _compile(own_file.read_text(), config, str(own_file))
    source = _default_of(config.get("chat_template"), str(config_path))
    return None if source is None else _compile(source, config, str(config_path))


def _default_of(value: object, origin: str) -> str | None:
    """A template given as text, or the one named `default` (else the first) of a list."""
    if value is None or isinstance(value, str):
        return value
    try:
        assert isinstance(value, list)
        named = {str(entry["name"]): str(entry["template"]) for entry in value}
        return named.get(_DEFAULT_NAME) or next(iter(named.values()))
    except (AssertionError, KeyError, TypeError, StopIteration):
        raise ModelLoadError(
            f"model.uri: chat_template in {origin} is {type(value).__name__}; "
            "allowed: a string or a list of {name, template}"
        ) from None


def _compile(source: str, config: Mapping[str, Any], origin: str) -> ChatTemplate:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    try:
        template = environment.from_string(source)
        read = meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError as error:
        raise ModelLoadError(f"model.uri: chat template in {origin}: {error}") from None
    special = {name: text for name in _SPECIAL_TOKENS if (text := _text_of(config.get(name)))}
    options = frozenset(read - environment.globals.keys() - {*_SPECIAL_TOKENS, *_GIVEN})
    return ChatTemplate(template, special, source, "tools" in read, options)


def _text_of(token: object) -> str:
    """A special token as tokenizer_config writes it: a string, or an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
