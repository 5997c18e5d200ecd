"""Resolved settings of a pool with their sources, and the form in which status and revisions have
them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel, to_snake
from sluice_contract.config.sizing import Resolved, Source

from sluice_operator.api.status import ResolvedValue
from sluice_operator.kube.kinds import Manifest

Settings = dict[str, Resolved]
"""Settings by field name of `EngineSettings`, and `kv_transfer_backend`."""


def settings_status(settings: Settings) -> Manifest:
    """The form in which settings are shown in status."""
    return {
        to_camel(name): ResolvedValue(
            value=entry.value, source=entry.source.value, **{"from": entry.origin}
        ).to_json_dict()
        for name, entry in sorted(settings.items())
    }


def settings_from(shown: Mapping[str, Any]) -> Settings:
    """The settings that `settings_status` has shown.

    Raises:
        ValidationError: they were not shown by it.
    """
    return {to_snake(key): _resolved(ResolvedValue.model_validate(v)) for key, v in shown.items()}


def _resolved(shown: ResolvedValue) -> Resolved:
    return Resolved(value=shown.value, source=Source(shown.source), origin=shown.from_)
