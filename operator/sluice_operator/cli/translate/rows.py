"""One row per flag: its name in another engine, our setting, and how the two differ.

Readers convert the values of other engines. Each raises ValueError for values that it does not
understand, and NotCarriedError for values that a service cannot have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Convert = Callable[[str], Any]
"""Text of a flag → our value. Raises ValueError, saying what is allowed."""


class NotCarriedError(Exception):
    """A flag without a counterpart here; `str()` says why, and what to do instead."""


@dataclass(frozen=True)
class Partly:
    """Our value of a flag, and what of the flag is not carried over."""

    value: Any
    lost: tuple[str, ...]


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


def percent(text: str) -> int | Partly:
    """A share or a factor, as 0.9, in percent."""
    value = fraction(text) * 100
    if not math.isfinite(value) or value <= 0:
        raise ValueError("a number above 0")
    if abs(value - round(value)) < 1e-6:
        return round(value)
    whole = max(1, math.floor(value))
    return Partly(whole, (f"{text} is rounded down to {whole} percent",))


def count(least: int) -> Convert:
    """Converter of integers, which refuses those below `least`."""

    def convert(text: str) -> int:
        if (value := number(text)) < least:
            raise ValueError(f"a whole number, at least {least}")
        return value

    return convert


def only_one(why: str) -> Convert:
    """Converter of the number 1, which changes nothing; a larger one is refused, saying `why`."""

    def convert(text: str) -> int:
        if number(text) != 1:
            raise ValueError(f"1: {why}")
        return 1

    return convert


def largest(text: str) -> int:
    """The largest of several numbers, in JSON or as words."""
    return max(number(word) for word in text.strip("[]").replace(",", " ").split() or [text])


def names(text: str) -> dict[str, Any]:
    """The name of a model and, from further words, its aliases."""
    first, *more = text.split()
    return {"name": first, **({"aliases": more} if more else {})}


def gigabytes(unit: str) -> Convert:
    """Converter of a size in `G` or `Gi`, as Kubernetes writes it."""

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
    """Converter of the other engine's names to ours; refuses anything else."""

    def convert(text: str) -> Any:
        if text not in names:
            raise ValueError(", ".join(names))
        return names[text]

    return convert


def only_default(*kept: str, lost: str) -> Convert:
    """Converter that accepts the values `kept`, which need no setting, and refuses others for the
    reason `lost`."""

    def convert(text: str) -> str:
        if text not in kept:
            raise NotCarriedError(lost)
        return text

    return convert


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def adapters(text: str) -> list[dict[str, Any]]:
    """LoRA adapters: `name=path`, a path, or a JSON object with both."""
    specs = []
    for word in re.findall(r"\{[^}]*\}|\S+", text):
        if word.startswith("{"):
            fields = json_object(word)
            name = fields.get("name") or fields.get("lora_name")
            path = fields.get("path") or fields.get("lora_path")
        else:
            name, equals, path = word.partition("=")
            name, path = (name, path) if equals else (word.rstrip("/").rpartition("/")[2], word)
        if not (isinstance(name, str) and isinstance(path, str) and name and path):
            raise ValueError("name=path, a path, or a JSON object with both")
        specs.append({"name": name, "uri": model_uri(path)})
    return specs


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
    """Names without leading dashes; the first is shown."""
    path: str = ""
    """Our setting, below `spec`; empty: there is nothing to set."""
    says: str = ""
    """Meaning of the setting here, or why there is none."""
    convert: Convert | None = text_value
    """None: the flag takes no value."""
    value: Any = None
    """Our value for a flag that takes none."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the flag implies beyond `path`, by path."""
    is_secret: bool = False
    """Its value is not shown."""
    many: bool = False
    """Whether it takes all words up to the next flag."""
    yields: bool = False
    """Gives way to another flag for the same setting; two others with different values are an
    error."""
    lost: bool = False
    """Whether the flag's request is not carried over; `says` has the reason."""
    needs: str = ""
    """A path that another flag has to set; else it is not carried over, for the reason `says`."""

    @property
    def is_lost_switch(self) -> bool:
        """Whether it turns something on that is always off here."""
        return self.lost and self.convert is None


def switch(name: str, path: str, value: Any, says: str) -> Flag:
    """A flag without a value that stands for one of ours."""
    return Flag((name,), path, says, None, value)


def needless(*names: str, says: str, takes: bool = True, many: bool = False) -> Flag:
    """Flags that the operator takes care of, or that change no answer; `takes`: have values."""
    return Flag(names, "", says, text_value if takes else None, many=many)


def lost(*names: str, says: str, takes: bool = True, many: bool = False) -> Flag:
    """Flags without a counterpart; `says`: why, or what to do instead."""
    return Flag(names, "", says, text_value if takes else None, many=many, lost=True)


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
    "engine.memoryPercent": ("percent of the device's memory for weights and KV pool", percent),
    "engine.pageSize": ("tokens in one page of the KV pool", number),
    "engine.tensorParallelSize": ("GPUs that share each layer", number),
}
"""Settings that several engines have under names of their own: what each is, and how it is read."""


def sets(path: str, *names: str) -> Flag:
    """A flag whose value is that of our setting `path`, one of MEANINGS."""
    says, convert = MEANINGS[path]
    return Flag(names, path, says, convert)


CHECKPOINTS: Final = (
    "awq", "awq_marlin", "compressed-tensors", "gptq", "gptq_marlin", "modelopt", "modelopt_fp8",
    "mxfp4",
)  # fmt: skip
"""Formats of checkpoints that are read here, by the names that choose them."""


def quantization(text: str) -> str:
    """A format of checkpoints. FP8 may also ask that weights be quantised, which is not done."""
    if text in ("fp8", "w8a8_fp8"):
        raise NotCarriedError(
            "name an FP8 checkpoint: engines make no FP8 weights of others. On NVIDIA's GPUs from "
            "A100 on a checkpoint's weights stay packed"
        )
    if text not in CHECKPOINTS:
        raise ValueError(", ".join((*CHECKPOINTS, "fp8")))
    return text


ONE_NODE: Final = "the GPUs of an engine are on one node, and share each layer"
REPLICAS: Final = "_replicas"
"""Key of a translation in progress: `replicas`, until it is known whether there are two pools."""
TWO_POOLS: Final = "_prefill"
"""Key of a translation in progress: whether the spec gets a section `prefill`."""

COMMON: Final = (
    Flag(("served-model-name",), "model", "the name in the OpenAI API", names, many=True),
    sets("model.revision", "revision"),
    sets("engine.dtype", "dtype"),
    sets("engine.kvCacheDtype", "kv-cache-dtype"),
    Flag(
        ("quantization", "q"),
        "",
        "nothing to set: config.json says it; other models are not quantised",
        quantization,
    ),
    Flag(
        ("device",),
        "",
        "GPUs, unless it is cpu",
        one_of({"auto": "auto", "cuda": "cuda", "cpu": "cpu"}),
    ),
    Flag(("data-parallel-size", "dp-size", "dp"), REPLICAS, "engines of each pool", count(1)),
    Flag(("pipeline-parallel-size", "pp-size", "pp"), "", "as it is here", only_one(ONE_NODE)),
    Flag(("nnodes",), "", "as it is here", only_one(ONE_NODE)),
    Flag(
        ("load-format",),
        "",
        "as it is here",
        only_default("auto", "safetensors", lost="weights are read from safetensors alone"),
    ),
    Flag(
        ("tokenizer-mode",),
        "",
        "as it is here",
        only_default("auto", "hf", "fast", lost="the fast tokenizer is used"),
    ),
    Flag(
        ("api-key",),
        "",
        "use router.auth: keys are in a Secret",
        is_secret=True,
        many=True,
    ),
    needless("host", says="not needed: every pod listens on its own address"),
    needless("port", says="not needed: the front Service listens on port 80"),
    switch(
        "trust-remote-code", "", None, "no meaning here: a model's own Python code is never run"
    ),
    lost(
        "data-parallel-rank", "data-parallel-size-local", "data-parallel-address", "node-rank",
        "data-parallel-rpc-port", "data-parallel-backend", "data-parallel-start-rank",
        "dist-init-addr", "nccl-init-addr", "master-addr", "master-port", "nccl-port",
        says="the operator starts the engines, and the router spreads requests over them",
    ),
    lost(
        "chat-template", "hf-chat-template-name", "completion-template",
        "chat-template-content-format",
        says="the model's own chat template is used",
    ),
    lost("tokenizer", "tokenizer-path", "tokenizer-revision", says="the model's own is used"),
    lost("config", says="a file is not read here: give its flags"),
    lost("download-dir", says="model.cache names the volume of downloads"),
    lost("cpu-offload-gb", says="weights stay on the GPUs"),
    lost("tool-server", "tool-parser-plugin", says="only formats of calls that it knows are read"),
    lost("kv-events-config", says="no events of the KV cache are published"),
    lost("root-path", "fastapi-root-path", says="an HTTPRoute (routes) rewrites paths"),
    lost("otlp-traces-endpoint", says="tracing.endpoint takes a collector's URL for OTLP/HTTP"),
    lost(
        "enable-expert-parallel", "enable-eplb", "enable-dp-attention", "enable-dp-lm-head",
        "enable-two-batch-overlap",
        says="experts are divided among an engine's GPUs as other layers are",
        takes=False,
    ),
    lost("grpc", "grpc-mode", says="the API is HTTP", takes=False),
    lost(
        "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-keyfile-password",
        says="TLS ends at your Gateway or Ingress",
    ),
)  # fmt: skip
"""Flags with the same spelling in several engines, also those that Sluice has nothing for."""
