"""A request as Claude Code sends it, by its shape: what it holds is made up."""

from __future__ import annotations

from typing import Any, Final

HEADERS: Final = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-api-key": "none",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.90 (external, cli)",
    "x-stainless-helper-method": "stream",
}
BILLING: Final = "x-anthropic-billing-header: cc_version=2.1.90.4f1; cc_entrypoint=cli; cch=8a13f;"
_CACHED: Final = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
_NAMES: Final = (
    "Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "NotebookEdit", "WebFetch",
    "TodoWrite", "WebSearch", "KillShell",
    "mcp__a_server_with_a_long_name__a_tool_with_a_long_name_of_its_own",
)  # fmt: skip


def _tool(name: str) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"description": "An absolute path", "type": "string"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            "mode": {"type": "string", "enum": ["content", "files_with_matches"]},
            "edits": {
                "type": "array",
                "items": {"type": "object", "properties": {"old": {"type": "string"}}},
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"What {name} does.", "input_schema": schema}


TOOLS: Final = [*(_tool(name) for name in _NAMES[:-1]), _tool(_NAMES[-1]) | _CACHED]
MESSAGES: Final[list[dict[str, Any]]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nToday.\n</system-reminder>"},
            {"type": "text", "text": "What is in a.txt?"},
        ],
    },
    {"role": "system", "content": "The user opened a.txt."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I read it.", "signature": "unsigned"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "Read", "input": {"path": "/a.txt"}},
            {"type": "tool_use", "id": "c2", "name": "Glob", "input": {"path": "/"}},
        ],
    },
    {"role": "system", "content": [{"type": "text", "text": "Tools are slow."}]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one\ntwo"},
            {
                "type": "tool_result",
                "tool_use_id": "c2",
                "is_error": True,
                "content": [{"type": "text", "text": "No such tool."}],
            },
            {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
        ],
    },
]
CLAUDE_CODE: Final[dict[str, Any]] = {
    "model": "echo",
    "messages": MESSAGES,
    "system": [
        {"type": "text", "text": BILLING},
        {"type": "text", "text": "You are a program's agent.", **_CACHED},
        {"type": "text", "text": "Be concise.", **_CACHED},
    ],
    "tools": TOOLS,
    "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'},
    "max_tokens": 100,
    "thinking": {"type": "disabled"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "betas": ["claude-code-20250219", "context-management-2025-06-27"],
    "output_config": {"effort": "high"},
    "stream": True,
}
