"""Chat templates that take, or show, less than the API accepts; each shows one property or some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_runtime.model.chat_template import ChatTemplate, compiled_template

_CALLS: Final = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}"
)
_TOOLS: Final = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"

KNOWN_ROLES: Final = (  # Qwen3: another role prints nothing
    _TOOLS + "{% for m in messages %}"
    "{% if m.role in ['system', 'user'] %}<{{ m.role }}>{{ m.content }}</>"
    "{% elif m.role == 'assistant' %}<assistant>{{ m.content }}" + _CALLS + "</>"
    "{% elif m.role == 'tool' %}<user><tool_response>\n{{ m.content }}\n</tool_response></>"
    "{% endif %}{% endfor %}"
)
ANY_ROLE: Final = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
"""SmolLM2's: knows neither tools nor calls."""
_ALTERNATE: Final = (
    "{% if (m.role == 'user') != (ns.turns % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set ns.turns = ns.turns + 1 %}"
)
ALTERNATING: Final = (  # Gemma 3: no role for tools
    "{% set ns = namespace(turns=0) %}{% set first = '' %}{% set rest = messages %}"
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n' %}"
    "{% set rest = messages[1:] %}{% endif %}{% for m in rest %}" + _ALTERNATE + "<{{ m.role }}>"
    "{{ first if loop.first else '' }}{{ m.content | trim }}</>{% endfor %}"
)
NO_SYSTEM: Final = (  # Gemma 2
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% set ns = namespace(turns=0) %}{% for m in messages %}" + _ALTERNATE + ""
    "<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
)
STRICT_CALLS: Final = (  # Mistral: ids of nine characters, no text beside calls
    "{% set ns = namespace(turns=0) %}{% set rest = messages %}"
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% endif %}"
    "{% for m in rest if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    + _ALTERNATE
    + "{% endfor %}{% for m in rest %}{% if m.role == 'user' %}"
    "{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}{% endif %}"
    "[INST]{{ system if loop.last else '' }} {{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs') }}{% endif %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"},{% endfor %}]'
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}</s>"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('Tool call IDs') }}{% endif %}[TOOL_RESULTS]{{ m.content }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}"
    "{% endif %}{% endfor %}"
)
SINGLE_CALLS: Final = (  # Llama 3.1: one call a turn, no text beside it, results as JSON
    _TOOLS + "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('This model takes single calls') }}"
    '{% endif %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}"
    "{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}{% endif %}"
    "</>{% endfor %}"
)
SYSTEM_FIRST: Final = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}" + _CALLS + "</>{% endfor %}"
)
DROPS_RESULTS: Final = (
    _TOOLS
    + "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}"
    + _CALLS
    + "</>{% endif %}{% endfor %}"
)
DROPS_CALLS: Final = _TOOLS + ANY_ROLE
CALLS_OR_TEXT: Final = (  # no text beside calls, and no two turns of a role
    "{% for m in messages %}{% if not loop.first and messages[loop.index0 - 1].role == m.role %}"
    "{{ raise_exception('Roles must change') }}{% endif %}<{{ m.role }}>"
    "{% if not m.tool_calls %}{{ m.content }}{% endif %}" + _CALLS + "</>{% endfor %}"
)
CALLS_WITH_TOOLS: Final = (  # calls and results in conversations with tools alone
    _TOOLS + "{% for m in messages if tools or m.role != 'tool' %}<{{ m.role }}>{{ m.content }}"
    "{% if tools %}" + _CALLS + "{% endif %}</>{% endfor %}"
)
FIRST_SYSTEM_ONLY: Final = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}</>{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
LAST_TURN_ONLY: Final = "{{ messages[-1].content }}|"
"""Hopeless: most of a conversation is named."""


def named(default: str, tool_use: str) -> ChatTemplate:
    """A model with a template of its own for tools."""
    return compiled_template(default, {}, "test", compiled_template(tool_use, {}, "test"))


TEMPLATES: Final[Mapping[str, ChatTemplate]] = {
    name: compiled_template(source, {}, name)
    for name, source in {
        "known roles": KNOWN_ROLES,
        "any role": ANY_ROLE,
        "alternating": ALTERNATING,
        "no system": NO_SYSTEM,
        "strict calls": STRICT_CALLS,
        "single calls": SINGLE_CALLS,
        "system first": SYSTEM_FIRST,
        "drops results": DROPS_RESULTS,
        "drops calls": DROPS_CALLS,
        "calls or text": CALLS_OR_TEXT,
        "calls with tools": CALLS_WITH_TOOLS,
        "first system only": FIRST_SYSTEM_ONLY,
        "last turn only": LAST_TURN_ONLY,
    }.items()
} | {"named": named(ANY_ROLE, KNOWN_ROLES)}
