"""How model families write a tool call: a registry, known by the model's chat template.

Knows the text of a call, both to read it (`calls`) and to hold a model to it (`plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class ToolFormat:
    """A call is `opening`, a JSON object of name and arguments, `closing`; white space between."""

    name: str
    opening: str
    closing: str
    known_by: Callable[[str], bool]
    """Whether a chat template asks the model for this format."""

    def tag(self, function: str, schema: Any) -> dict[str, Any]:
        """One call as the grammar library's structural tags have it."""
        return {
            "type": "tag",
            "begin": f'{self.opening}\n{{"name": "{function}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 32},
            "end": f"}}\n{self.closing}",
        }


HERMES: Final = ToolFormat(
    name="hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    known_by=lambda template: "<tool_call>" in template and "<function=" not in template,
)
"""Hermes, Qwen2.5 and Qwen3. (Qwen3-Coder has the tags, and parameters in tags of their own.)"""

FORMATS: Final = (HERMES,)
WRAPPING: Final = HERMES
"""What a model of an unknown family is held to when it must call."""


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template asks for, if it is a known one."""
    return next((known for known in FORMATS if known.known_by(template)), None)
