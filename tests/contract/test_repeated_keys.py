"""A key that stands twice in an object is found, wherever it is, and no other."""

from __future__ import annotations

import pytest
from sluice_contract.base import ConfigError, RepeatedKey, repeated_key
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.router import parse_router_config


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", None),
        ('{"a": {"b": 1}, "b": [{"b": 1}, {"b": 2}]}', None),
        ('{"a": 1, "b": {}, "a": 1}', RepeatedKey("a", True)),
        ('{"a": 1, "\\u0061": 1}', RepeatedKey("a", True)),
        ('{"a": {"b": 1, "b": 1}}', RepeatedKey("b", False)),
        ('{"a": [{"b": 1, "b": 1}], "c": {}}', RepeatedKey("b", False)),
        ('{"a": {"b": 1, "b": 1}, "a": 1}', RepeatedKey("b", False)),
        ('{"a": ' + "1" * 5000 + ', "a": 1}', RepeatedKey("a", True)),
    ],
)
def test_a_key_that_stands_twice_in_an_object_is_found(
    text: str, found: RepeatedKey | None
) -> None:
    assert repeated_key(text) == found
    assert repeated_key(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"model": {"uri": "dummy://qwen3-tiny"}, "seed": 1, "seed": 2}', "seed"),
        ('{"model": {"uri": "a", "uri": "b"}}', "uri"),
    ],
)
def test_a_key_twice_in_the_engines_file_is_refused(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: is given again; allowed: once$"):
        parse_engine_config(text)


def test_a_key_twice_in_the_routers_file_is_refused() -> None:
    text = '{"engines": ["http://a:1"], "server": {"port": 1, "port": 2}}'
    with pytest.raises(ConfigError, match="port: is given again; allowed: once"):
        parse_router_config(text)
