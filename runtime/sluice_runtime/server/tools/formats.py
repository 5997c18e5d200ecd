"""Registry of the formats in which model families write tool calls. The configuration sets the
format (`toolCallFormat`), or the model's chat template reveals it.

A format parses the text of calls (`readers`) and makes grammars for them (`call_grammars`).
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_contract.config.engine import ToolCallFormat

from sluice_runtime.server.tools import readers
from sluice_runtime.server.tools.call_grammars import (
    CallGrammar,
    JsonList,
    JsonTag,
    NamedTag,
)
from sluice_runtime.server.tools.calls import CallReader
from sluice_runtime.server.tools.xml_grammar import (
    LeaveOut,
    XmlTag,
    adapt_to_text,
    types_between_tags,
)

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


def _long_id(call: str) -> str:
    return f"call_{hashlib.sha256(call.encode()).hexdigest()[:24]}"


def nine_characters(call: str) -> str:
    """Id of nine letters and digits; Mistral's chat templates refuse any other."""
    number, characters = int.from_bytes(hashlib.sha256(call.encode()).digest()), ""
    for _ in range(9):
        number, place = divmod(number, len(_ID_CHARACTERS))
        characters += _ID_CHARACTERS[place]
    return characters


@dataclass(frozen=True)
class ToolFormat:
    """One format of tool calls."""

    name: ToolCallFormat
    families: str
    """Model families that use it."""
    read: CallReader
    grammar: CallGrammar
    """Builds grammars for it."""
    known_by: Callable[[str], bool]
    """Whether a chat template uses this format."""
    adapt: Callable[[dict[str, Any], LeaveOut], None] | None = None
    """Removes from a schema the constraints that the format cannot enforce; None: it can enforce
    all."""
    read_by: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Turns a function's schema into the schema by which its arguments are parsed; None: the schema
    itself is used."""
    markers: tuple[str, ...] = ()
    """Markers that may be special tokens and must be decoded as text."""
    id_of: Callable[[str], str] = field(default=_long_id)
    """Makes a call's id from a unique name of the call, so that another engine that continues the
    answer makes equal ids."""


HERMES: Final = ToolFormat(
    name="hermes",
    families="Hermes, Qwen2.5 and Qwen3",
    read=readers.read_hermes,
    grammar=JsonTag(
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
    grammar=XmlTag(),
    adapt=adapt_to_text,
    read_by=types_between_tags,
    known_by=lambda template: "<function=" in template,
    markers=(readers.CALL, readers.CALL_END),
)
MISTRAL: Final = ToolFormat(
    name="mistral",
    families="Mistral's models up to version 7 of their tokenizer",
    read=readers.read_mistral,
    grammar=JsonList(),
    known_by=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    markers=(readers.TOOL_CALLS,),
    id_of=nine_characters,
)
"""Mistral's older format: one list of all calls."""
MISTRAL_NAMED: Final = ToolFormat(
    name="mistral",
    families="those from version 11 on",
    read=readers.read_mistral,
    grammar=NamedTag(),
    known_by=lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    markers=(readers.TOOL_CALLS, readers.CALL_ID, readers.ARGS),
    id_of=nine_characters,
)
"""Mistral's newer format: a marker, the name and the arguments of each call."""
LLAMA3: Final = ToolFormat(
    name="llama3-json",
    families="Llama 3.1 to 3.3",
    read=readers.read_llama3,
    grammar=JsonTag(
        begin='{"name": "%s", "parameters": ', end="}", separator="; ", trigger='{"name": "'
    ),
    known_by=lambda template: (
        readers.PYTHON_TAG in template or '{"name": function name, "parameters":' in template
    ),
    markers=(readers.PYTHON_TAG,),
)

FORMATS: Final = (HERMES, QWEN3_CODER, MISTRAL, MISTRAL_NAMED, LLAMA3)
WRAPPING: Final = HERMES
"""The format for models of an unknown family, when a call is required."""


def tool_format_of(template: str, named: ToolCallFormat | None = None) -> ToolFormat | None:
    """The format that a chat template uses; None: unknown. With `named`, the best fit among the
    formats of that name."""
    of_name = [form for form in FORMATS if named in (None, form.name)]
    known = next((form for form in of_name if form.known_by(template)), None)
    return of_name[0] if known is None and named is not None else known
