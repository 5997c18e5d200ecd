"""One row a flag: what it is called there, which of our settings it is, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_operator.cli.translate.values import (
    DTYPES,
    KV_DTYPES,
    Convert,
    fraction,
    model_uri,
    number,
    text_value,
)


@dataclass(frozen=True)
class Flag:
    """A flag of another engine."""

    names: tuple[str, ...]
    """Without dashes in front; the first is shown."""
    path: str = ""
    """Our setting, below `spec`; empty: there is nothing to set."""
    says: str = ""
    """What the setting means here, or why there is none."""
    convert: Convert | None = text_value
    """None: the flag takes no value."""
    value: Any = None
    """Ours, of a flag that takes none."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that it asks for, by path."""


def switch(name: str, path: str, value: Any, says: str) -> Flag:
    """A flag without a value that stands for one of ours."""
    return Flag((name,), path, says, None, value)


def needless(*names: str, says: str) -> Flag:
    """A flag that the operator takes care of."""
    return Flag(names, "", says)


MEANINGS: Final[Mapping[str, tuple[str, Convert]]] = {
    "model.uri": ("where the weights are", model_uri),
    "model.name": ("the name in the OpenAI API", text_value),
    "model.revision": ("branch, tag or commit of a hub model", text_value),
    "engine.dtype": ("type of weights and activations", DTYPES),
    "engine.kvCacheDtype": ("type of the KV cache", KV_DTYPES),
    "engine.contextLength": ("most tokens of prompt and answer together", number),
    "engine.maxRunningRequests": ("most requests that run at once", number),
    "engine.memoryFraction": ("share of the device's memory for weights and KV pool", fraction),
    "engine.pageSize": ("tokens in one page of the KV pool", number),
    "engine.tensorParallelSize": ("GPUs that share each layer", number),
}
"""Settings that several engines have under names of their own: what each is, and how it is read."""


def sets(path: str, *names: str) -> Flag:
    """A flag whose value is that of our setting `path`, one of MEANINGS."""
    says, convert = MEANINGS[path]
    return Flag(names, path, says, convert)


COMMON: Final = (
    sets("model.name", "served-model-name"),
    sets("model.revision", "revision"),
    sets("engine.dtype", "dtype"),
    sets("engine.kvCacheDtype", "kv-cache-dtype"),
    needless("host", says="not needed: every pod listens on its own address"),
    needless("port", says="not needed: the front Service listens on port 80"),
    switch(
        "trust-remote-code", "", None, "no meaning here: a model's own Python code is never run"
    ),
)
"""Flags that all engines spell alike."""
