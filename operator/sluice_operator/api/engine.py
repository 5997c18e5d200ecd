"""The model and engine sections of an InferenceService."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from sluice_contract.config.adapters import MAX_ADAPTERS
from sluice_contract.config.defaults_text import words_when_left_out
from sluice_contract.config.engine import EngineSettings, ModelRef
from sluice_contract.config.sizing import GENERAL

from sluice_operator.api.adapters import AdapterSpec
from sluice_operator.api.base import (
    ApiModel,
    DnsName,
    Image,
    Quantity,
    Resources,
    Rule,
    SecretKeyRef,
    add_rules,
    left_out,
    list_map,
)

MODEL_URI: Final = (
    "hf://[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*"
    "|(s3|gs|az)://[a-z0-9][-._a-z0-9]{1,62}(/[-._=A-Za-z0-9]+)*/?"
    "|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/[^/:]+)*/?"
    r"|oci://[A-Za-z0-9][-.A-Za-z0-9]*(:[0-9]+)?(/[a-z0-9][-._a-z0-9]*)+"
    r"(:[A-Za-z0-9_][-._A-Za-z0-9]*)?(@sha256:[0-9a-f]{64})?"
    "|file://(/[^/:]+)+/?"
    "|dummy://[A-Za-z0-9][-._A-Za-z0-9]*"
)
MAX_IMAGE: Final = 512
"""Characters of the name of a model's image."""
MAX_PART: Final = 253
"""Characters between two slashes of a model's URI: names of claims and files are no longer."""
DRAIN_SECONDS: Final = 120
STARTUP_SECONDS: Final = 600

_LAST_OF_URI: Final = (
    "self.uri.substring(self.uri.lastIndexOf('/', size(self.uri) - 2) + 1).replace('/', '')"
    ".split(':')[0].split('@sha256')[0]"
)
_PAGE: Final = GENERAL["page_size"]


class CacheSpec(ApiModel):
    """A volume that keeps a downloaded model for all engines."""

    claim: DnsName | None = Field(
        default=None,
        description="PersistentVolumeClaim of this namespace, which outlives the service and may "
        "be shared with others.",
    )
    size: Quantity | None = Field(
        default=None,
        description="Size of a claim NAME-model that the operator makes, and that goes with the "
        "service.",
    )
    storage_class: DnsName | None = Field(
        default=None,
        json_schema_extra=left_out("the cluster's default"),
        description="StorageClass of the claim that the operator makes.",
    )
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = Field(
        default=None,
        json_schema_extra=left_out("ReadWriteMany"),
        description="Access mode of that claim. ReadWriteOnce: all engines have to be on one node.",
    )

    RULES: ClassVar = (
        Rule(
            "has(self.claim) != has(self.size)",
            lambda c: (c.claim is None) != (c.size is None),
            "claim or size, and not both",
        ),
        Rule(
            "!has(self.claim) || !(has(self.storageClass) || has(self.accessMode))",
            lambda c: c.claim is None or (c.storage_class is None and c.access_mode is None),
            "storageClass and accessMode only with size",
            "claim",
        ),
    )


_FETCHED: Final = ("hf://", "s3://", "gs://", "az://")
_REPOSITORY: Final = (
    r"(?:(?:https?://)?(?:huggingface\.co|hf\.co)/|(?:hf|huggingface):/{0,2})?"
    r"([A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*)/?"
)
"""A repository of the hub in other spellings than `MODEL_URI`'s."""
_IS_FETCHED: Final = "self.uri.matches('^(hf|s3|gs|az)://')"


def _with_a_hub(field: str, name: str) -> Rule:
    """The rule that a field needs a model of a hub or bucket, or adapters. Any list of adapters is
    enough, because adapters of a hub may be added later."""
    return Rule(
        f"!has(self.{field}) || {_IS_FETCHED} || has(self.adapters)",
        lambda s: getattr(s, name) is None or s.uri.startswith(_FETCHED) or s.adapters is not None,
        "only with a model of a hub or bucket, or with adapters",
        field,
    )


def _meant_uri(model: Any) -> str:
    """The URI that is meant by a hub's repository, a page of the hub or a path."""
    repository = re.fullmatch(_REPOSITORY, model.uri)
    meant = f"hf://{repository[1]}" if repository else f"file://{model.uri}"
    return f"did you mean {meant}?" if re.fullmatch(MODEL_URI, meant) else ""


class ModelSpec(ModelRef, ApiModel):
    """Which weights to serve, and under what name."""

    uri: str = Field(
        max_length=1024,
        description="Where the weights are: hf://org/name, s3://bucket/prefix (gs://, az://), "
        "pvc://claim/path (a volume of this namespace), oci://registry/repository:tag, "
        "file:///path (in the engine's image or a mounted volume), or dummy://name for random "
        "weights. Its last part is what clients call the model, unless name says otherwise.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Name of the model in the OpenAI API. Left out: the last part of the URI, so "
        "that another URI is another name to clients.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Token of a hub, or a bucket's variables (AWS_…=value, one a line), mounted as "
        "a file. Only with a model of a hub or bucket, or adapters.",
    )
    cache: CacheSpec | None = Field(
        default=None,
        description="Where a downloaded model is kept, and adapters, which need it. Left out: each "
        "engine downloads the model at its start into the storage of its node.",
    )
    resources: Resources | None = Field(
        default=None,
        json_schema_extra=left_out(
            "requests of cpu 100m and memory 128Mi, limits of cpu 2 and memory 1Gi, each by itself"
        ),
        description="CPU and memory of each container that brings the model, an adapter or a draft "
        "model: in Jobs, and before engines start.",
    )
    refresh: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Any text. Another text resolves the revisions of model and adapters again, "
        "and retries failed downloads. Until then a moved branch or tag changes nothing.",
    )
    adapters: list[AdapterSpec] | None = Field(
        default=None,
        max_length=MAX_ADAPTERS,
        json_schema_extra=list_map("name"),
        description="LoRA adapters that are served in addition to the model. Engines load and "
        "unload them without a restart. A new revision comes only if the list appears or goes, or "
        "if the claims of its entries or of the cache change.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.aliases) || self.aliases.all(a, "
            f"a != (has(self.name) ? self.name : {_LAST_OF_URI}))",
            lambda s: s.served_name not in (s.aliases or ()),
            "aliases other than the model's name",
            "aliases",
        ),
        Rule(
            f"self.uri.matches('^({MODEL_URI})$')",
            lambda s: re.fullmatch(MODEL_URI, s.uri) is not None,
            "hf://org/name, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
            "pvc://claim/path, oci://registry/repository:tag, file:///path, dummy://name",
            "uri",
            _meant_uri,
        ),
        Rule(
            "!self.uri.contains('/../') && !self.uri.endsWith('/..')",
            lambda s: "/../" not in s.uri and not s.uri.endswith("/.."),
            "a path without '..'",
            "uri",
        ),
        Rule(
            f"self.uri.split('/').all(p, size(p) <= {MAX_PART})",
            lambda s: max(map(len, s.uri.split("/"))) <= MAX_PART,
            f"at most {MAX_PART} characters between two slashes",
            "uri",
        ),
        Rule(
            f"!self.uri.startsWith('oci://') || size(self.uri) <= {len('oci://') + MAX_IMAGE}",
            lambda s: not s.uri.startswith("oci://") or len(s.uri) <= len("oci://") + MAX_IMAGE,
            f"an image whose name has at most {MAX_IMAGE} characters",
            "uri",
        ),
        Rule(
            f"!has(self.revision) || {_IS_FETCHED}",
            lambda s: s.revision is None or s.uri.startswith(_FETCHED),
            "only with a model of a hub or bucket",
            "revision",
        ),
        _with_a_hub("tokenSecretRef", "token_secret_ref"),
        _with_a_hub("cache", "cache"),
        _with_a_hub("refresh", "refresh"),
        Rule(
            f"!has(self.resources) || {_IS_FETCHED} || self.uri.startsWith('oci://') || "
            "has(self.adapters)",
            lambda s: (
                s.resources is None
                or s.uri.startswith((*_FETCHED, "oci://"))
                or s.adapters is not None
            ),
            "only with a model of a hub, bucket or image, or with adapters",
            "resources",
        ),
        Rule(
            "has(self.cache) || !has(self.adapters) || "
            "!self.adapters.exists(a, a.uri.startsWith('hf://'))",
            lambda s: s.cache is not None or not any(a.is_fetched for a in s.adapters or ()),
            "a claim or a size, as there are hf:// adapters",
            "cache",
        ),
    )


def _engine_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    add_rules(schema, model)
    for name, text in words_when_left_out().items():
        schema["properties"][to_camel(name)] |= left_out(text)


def _page_rules(*, inherits: bool) -> tuple[Rule, Rule]:
    """The rules that a step holds at least a page. `inherits`: a missing pageSize is that of
    another section, so only a given one is checked."""
    page_cel = f"self.?pageSize.orValue({0 if inherits else _PAGE})"
    allowed = "at least pageSize" + ("" if inherits else f" ({_PAGE} when left out)")

    def page(s: EngineSpec) -> int:
        return s.page_size or (0 if inherits else int(_PAGE))

    return (
        Rule(
            # Below -1 and below 1 the schema refuses already; one message is enough.
            f"!has(self.chunkSize) || self.chunkSize <= -1 || self.chunkSize >= {page_cel}",
            lambda s: s.chunk_size in (None, -1) or s.chunk_size >= page(s),
            f"-1 (off) or {allowed}",
            "chunkSize",
        ),
        Rule(
            "!has(self.maxPrefillTokens) || self.maxPrefillTokens < 1 || "
            f"self.maxPrefillTokens >= {page_cel}",
            lambda s: s.max_prefill_tokens is None or s.max_prefill_tokens >= page(s),
            allowed,
            "maxPrefillTokens",
        ),
    )


_PREFILL_TOKENS: Final = (
    Rule(
        "!has(self.minPrefillTokens) || !has(self.chunkSize) || self.chunkSize == -1 || "
        "self.minPrefillTokens <= self.chunkSize",
        lambda s: (
            s.min_prefill_tokens is None
            or s.chunk_size in (None, -1)
            or s.min_prefill_tokens <= s.chunk_size
        ),
        "at most chunkSize",
        "minPrefillTokens",
    ),
    Rule(
        "!has(self.minPrefillTokens) || !has(self.maxPrefillTokens) || "
        "self.minPrefillTokens <= self.maxPrefillTokens",
        lambda s: (
            None in (s.min_prefill_tokens, s.max_prefill_tokens)
            or s.min_prefill_tokens <= s.max_prefill_tokens
        ),
        "at most maxPrefillTokens",
        "minPrefillTokens",
    ),
)


class EngineSpec(EngineSettings, ApiModel):
    """Settings of the engines. All optional: what is left out is resolved, and shown in status."""

    model_config = ConfigDict(json_schema_extra=_engine_schema)

    image: Image | None = Field(
        default=None,
        description="Engine image; left out: that of the operator's release, for CPUs or GPUs.",
    )
    drain_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        json_schema_extra=left_out(DRAIN_SECONDS),
        description="Seconds that running streams may take after SIGTERM.",
    )
    startup_seconds: int | None = Field(
        default=None,
        ge=10,
        le=86_400,
        json_schema_extra=left_out(STARTUP_SECONDS),
        description="Seconds without progress in loading the model until an engine is restarted; "
        "two minutes later a roll-out stops.",
    )

    RULES: ClassVar = (*_page_rules(inherits=False), *_PREFILL_TOKENS)


class PrefillEngineSpec(EngineSpec):
    """Settings of the prefill engines alone. A rule across two settings applies only if both are
    set here, because a missing one may be set at the top level."""

    RULES: ClassVar = (*_page_rules(inherits=True), *_PREFILL_TOKENS)
