"""How model families write a tool call: a registry, known by the model's chat template, or named by
the configuration (`toolCallFormat`).

A format reads the text of calls (`readers`) and holds a model to it (`imposed`).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice_contract.config import ToolCallFormat

from sluice_runtime.server.tools import readers
from sluice_runtime.server.tools.calls import Reader
from sluice_runtime.server.tools.imposed import (
    Imposed,
    JsonList,
    JsonTag,
    NamedTag,
    XmlTag,
)

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


def _long_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _nine_characters() -> str:
    """The templates of Mistral's models refuse any other id."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls."""

    name: ToolCallFormat
    families: str
    """Models that write calls so."""
    read: Reader
    imposed: Imposed
    """What a grammar of calls is made of."""
    known_by: Callable[[str], bool]
    """Whether a chat template asks the model for this format."""
    markers: tuple[str, ...] = ()
    """What may be special tokens of the model, and is to be read none the less."""
    draw_id: Callable[[], str] = field(default=_long_id)


HERMES: Final = ToolFormat(
    name="hermes",
    families="Hermes, Qwen2.5 and Qwen3",
    read=readers.read_hermes,
    imposed=JsonTag(
        begin='<tool_call>\n{"name": "%s", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
        trigger=readers.CALL,
    ),
    known_by=lambda template: "<tool_call>" in template and "<function=" not in template,
    markers=(readers.CALL, readers.CALL_END),
)
QWEN3_CODER: Final = ToolFormat(
    name="qwen3-coder",
    families="Qwen3-Coder",
    read=readers.read_qwen3_coder,
    imposed=XmlTag(),
    known_by=lambda template: "<function=" in template,
    markers=(readers.CALL, readers.CALL_END),
)
MISTRAL: Final = ToolFormat(
    name="mistral",
    families="Mistral's models up to version 7 of their tokenizer",
    read=readers.read_mistral,
    imposed=JsonList(),
    known_by=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    markers=(readers.TOOL_CALLS,),
    draw_id=_nine_characters,
)
"""One list of calls."""
MISTRAL_NAMED: Final = ToolFormat(
    name="mistral",
    families="those from version 11 on",
    read=readers.read_mistral,
    imposed=NamedTag(),
    known_by=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    markers=(readers.TOOL_CALLS, readers.CALL_ID, readers.ARGS),
    draw_id=_nine_characters,
)
"""A marker, the name and the arguments of each call."""
LLAMA3: Final = ToolFormat(
    name="llama3-json",
    families="Llama 3.1 to 3.3",
    read=readers.read_llama3,
    imposed=JsonTag(
        begin='{"name": "%s", "parameters": ', end="}", separator="; ", trigger='{"name": "'
    ),
    known_by=lambda template: (
        readers.PYTHON_TAG in template or '{"name": function name, "parameters":' in template
    ),
    markers=(readers.PYTHON_TAG,),
)

FORMATS: Final = (HERMES, QWEN3_CODER, MISTRAL, MISTRAL_NAMED, LLAMA3)
WRAPPING: Final = HERMES
"""What a model of an unknown family is held to when it must call."""


def format_of(template: str, named: ToolCallFormat | None = None) -> ToolFormat | None:
    """The format that a chat template asks for, if it is a known one; of `named` ones, the one
    that fits best."""
    of_name = [form for form in FORMATS if named in (None, form.name)]
    known = next((form for form in of_name if form.known_by(template)), None)
    return of_name[0] if known is None and named is not None else known
