"""One row per flag: its name in another engine, our setting, and how the two differ.

And how values of other engines are read: each reader raises ValueError for what it does not
understand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Convert = Callable[[str], Any]
"""Text of a flag → our value. Raises ValueError, saying what is allowed."""
_FACTORS: Final = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}


def number(text: str) -> int:
    """An integer, also with k, K, m or M behind it (thousands or 1,024s)."""
    if not (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmM]?)", text)):
        raise ValueError("a whole number")
    value = float(match[1]) * _FACTORS[match[2]]
    if value != int(value):
        raise ValueError("a whole number")
    return int(value)


def fraction(text: str) -> float:
    """A decimal number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def gigabytes(unit: str) -> Convert:
    """A size in `G` or `Gi`, as Kubernetes writes it."""

    def convert(text: str) -> str:
        size = fraction(text)
        if not size > 0 or not math.isfinite(size):
            raise ValueError("a number above 0")
        if size == int(size):
            return f"{int(size)}{unit}"
        factor = 1000 if unit == "G" else 1024
        return f"{math.ceil(size * factor)}{unit.replace('G', 'M')}"

    return convert


def text_value(text: str) -> str:
    """The text itself."""
    return text


def one_of(names: Mapping[str, Any]) -> Convert:
    """Their name → ours; anything else is refused."""

    def convert(text: str) -> Any:
        if text not in names:
            raise ValueError(", ".join(names))
        return names[text]

    return convert


def model_uri(text: str) -> str:
    """A folder, or a model of the hub."""
    if "://" in text:
        return text
    if text.startswith("/"):
        return f"file://{text}"
    if text.count("/") == 1:
        return f"hf://{text}"
    raise ValueError("/a/folder or organisation/name")


DTYPES: Final = one_of(
    {
        "auto": "auto",
        "half": "float16",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "float": "float32",
        "float32": "float32",
    }
)
KV_DTYPES: Final = one_of({"auto": "auto", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3"})


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
    is_secret: bool = False
    """Its value is not shown."""


def switch(name: str, path: str, value: Any, says: str) -> Flag:
    """A flag without a value that stands for one of ours."""
    return Flag((name,), path, says, None, value)


def needless(*names: str, says: str) -> Flag:
    """A flag that the operator takes care of."""
    return Flag(names, "", says)


SPECULATION: Final = "where drafts come from; Sluice verifies fewer, or none, where more do not pay"
HOST_CACHE: Final = "memory for prefixes that the device's cache evicts, of each engine"


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


QUANTIZATIONS: Final = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt")
"""Formats of checkpoints that engines read."""

COMMON: Final = (
    sets("model.name", "served-model-name"),
    sets("model.revision", "revision"),
    sets("engine.dtype", "dtype"),
    sets("engine.kvCacheDtype", "kv-cache-dtype"),
    Flag(
        ("quantization",),
        "",
        "nothing to set: config.json says it; other models are not quantised",
        one_of({name: name for name in QUANTIZATIONS}),
    ),
    Flag(("api-key",), "", "use router.auth: keys are in a Secret", is_secret=True),
    needless("host", says="not needed: every pod listens on its own address"),
    needless("port", says="not needed: the front Service listens on port 80"),
    switch(
        "trust-remote-code", "", None, "no meaning here: a model's own Python code is never run"
    ),
)
"""Flags with the same spelling in all engines."""
