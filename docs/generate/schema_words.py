"""Words for a table's cell about one field, from its schema. Knows no field."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter
from sluice_contract.config import cors, host_cache, tracing
from sluice_contract.config import router as router_config
from sluice_operator.api import base, route

Schema = dict[str, Any]


def _pattern(kind: Any) -> str:
    return str(TypeAdapter(kind).json_schema()["pattern"])


PATTERNS: Final = {
    _pattern(base.DnsLabel): "DNS label, at most 63 characters",
    _pattern(base.DnsName): "DNS name, at most 253 characters",
    _pattern(base.LabelKey): "label key, like example.com/name or name",
    _pattern(base.LabelValue): "label value, at most 63 characters",
    _pattern(base.ResourceName): "resource like nvidia.com/gpu",
    _pattern(base.Image): "no spaces, at most 512 characters",
    _pattern(base.FilePath): "absolute path without ':', at most 512 characters",
    host_cache.BYTES_PATTERN: "whole bytes like 64Gi",
    _pattern(base.Quantity): "like 2, 500m or 4Gi",
    r"^[A-Za-z0-9_][-./A-Za-z0-9_]*$": "letters, digits, '_', '-', '.', '/', the first none of the "
    "last three; at most 128",
    r"^[-._a-zA-Z0-9]+$": "letters, digits, '-', '_', '.'; at most 253",
    _pattern(router_config.EngineUrl): "http://HOST:PORT",
    _pattern(cors.Origin): "'*', http://HOST[:PORT] or https://HOST[:PORT]",
    _pattern(tracing.CollectorUrl): "http://HOST:PORT or https://HOST, with or without a path",
    _pattern(route.PathPrefix): "/, or segments like /team/chat, none of them with a dot first",
    _pattern(route.Hostname): "host like models.example.com or *.example.com, no port",
    route.HEADER_NAME: "letters, digits and '-'",
    route.HEADER_VALUE: "printable characters, no spaces",
    base.DECIMAL_PATTERN: "",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and '_', no digit first; at most 128",
}
"""Patterns in words; a new pattern needs a row, or pages cannot be written."""


def type_words(node: Schema) -> str:
    """The JSON type; for lists and maps also the type of their entries."""
    if node.get("x-kubernetes-int-or-string"):
        return "quantity" if node["pattern"] == base.QUANTITY_PATTERN else "integer or string"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "any"
    if node["type"] == "array":
        return f"list of {_several(type_words(node['items']))}"
    if isinstance(values := node.get("additionalProperties"), dict):
        return f"map to {_several(type_words(values))}"
    return str(node["type"])


def allowed_words(node: Schema) -> str:
    """Which values of its type a field takes; empty when all."""
    if "enum" in node:
        return ", ".join(f"`{value}`" if value else "empty" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if "pattern" in node:
        return PATTERNS[node["pattern"]]
    if node.get("type") == "array":
        return _of_each(_count(node, "Items", "item"), node["items"])
    if isinstance(values := node.get("additionalProperties"), dict):
        return _of_each(_count(node, "Properties", "key"), values)
    if node.get("type") == "string":
        return _count(node, "Length", "character")
    return _range(node)


def _several(word: str) -> str:
    return {"quantity": "quantities", "any": "any"}.get(word, f"{word}s")


def _of_each(count: str, inner: Schema) -> str:
    each = allowed_words(inner)
    return "; each ".join(words for words in (count, each) if words)


def _count(node: Schema, what: str, unit: str) -> str:
    least, most = node.get(f"min{what}"), node.get(f"max{what}")
    if least and most:
        return f"{least:,} to {most:,} {unit}s"
    if most:
        return f"at most {most:,} {unit}s"
    return f"at least {least:,} {unit}{'s' if least > 1 else ''}" if least else ""


def _range(node: Schema) -> str:
    if "minimum" in node and "maximum" in node:
        return f"{node['minimum']} to {node['maximum']}"
    words = {
        "minimum": "{} or more",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
    }
    return ", ".join(text.format(_number(node[key])) for key, text in words.items() if key in node)


def _number(value: float) -> str:
    return f"2^{int(value).bit_length() - 1}" if value >= 2**53 else f"{value:g}"
