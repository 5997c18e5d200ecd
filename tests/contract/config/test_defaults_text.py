"""What is said of keys that are left out is what holds."""

from __future__ import annotations

import json

from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.defaults_text import (
    BY_ACCELERATOR,
    FOUND_BY_ENGINE,
    words_when_left_out,
)
from sluice_contract.config.engine import EngineSettings
from sluice_contract.config.sizing import UNRESOLVED, resolve_settings


def test_every_setting_says_what_holds_when_it_is_left_out() -> None:
    assert words_when_left_out().keys() == EngineSettings.model_fields.keys() - UNRESOLVED


def test_what_is_said_is_what_is_resolved() -> None:
    resolved = resolve_settings(EngineSettings(), Accelerator())
    said = words_when_left_out()
    assert resolved.keys() - said.keys() == set()
    assert FOUND_BY_ENGINE.keys() & resolved.keys() == {"min_prefill_tokens"}
    assert resolved["min_prefill_tokens"].value == resolved["page_size"].value
    for name in resolved.keys() - FOUND_BY_ENGINE.keys():
        value = resolved[name].value
        words = value if isinstance(value, str) else json.dumps(value)
        told = said[name].removesuffix(" on CPUs").rpartition("; ")[2]
        assert told == words if name in BY_ACCELERATOR else said[name] == words, name
