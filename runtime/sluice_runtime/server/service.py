"""The parts of the API process that the routes use, as one object; built by `process`."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Final

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.cors import Cors
from sluice_contract.config.kv_transfer import KvFingerprint, KvTransfer
from sluice_contract.config.server import DEFAULT_MAX_CHOICES_PER_REQUEST
from sluice_contract.wire.handover import Keys
from sluice_contract.wire.load import (
    HandoverWire,
    LoadReport,
    read_rate,
    router_seconds,
)
from sluice_contract.wire.spans import Record

from sluice_runtime.errors import UnavailableError
from sluice_runtime.fingerprint import kv_fingerprint
from sluice_runtime.handover.messages import HANDOVER_VERSION
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.failures import ModelNotFoundError
from sluice_runtime.server.generation import Generator
from sluice_runtime.server.http import Gate
from sluice_runtime.server.metrics import EngineMetrics
from sluice_runtime.server.prompts import ModelText, ServedModel
from sluice_runtime.server.signed_headers import RoleCheck, SignatureCheck
from sluice_runtime.wire.messages import EngineReady, HandoverLoad

_log = logging.getLogger(__name__)

_MAX_LOGGED_FIELDS: Final = 256
_MAX_ROUTERS: Final = 64


def draw_seed() -> int:
    """Seed of a request that gives none: from the system's entropy, so that replicas differ."""
    return secrets.randbits(63)


@dataclass(frozen=True)
class Clocks:
    """`monotonic` is shared with the engine process; `unix` is for people."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


@dataclass(frozen=True)
class Identity:
    """Name, role and limits of this server."""

    model: str
    role: Role
    """The configured one: see `Service.role`."""
    max_body_bytes: int
    started_unix: int
    strict_requests: bool = False
    """Whether a request is refused that could only be answered by changing or ignoring a part."""
    max_choices: int = DEFAULT_MAX_CHOICES_PER_REQUEST
    """Most answers that one request may ask for."""
    model_uri: str = ""
    model_revision: str | None = None
    tensor_parallel_size: int = 1
    host_cache: bool = False
    pool_revision: str | None = None
    """Revision of the pod's pool; None outside a cluster."""
    handover_keys: Keys | None = field(default=None, repr=False)
    """Keys of the router's signatures; a decode engine needs them."""
    requires_signature: bool = False
    """Whether only requests that the service's router has signed are served."""
    accelerator: Accelerator = field(default_factory=Accelerator)
    """What the engine computes on."""
    kv_transfer: KvTransfer | None = None
    """What carries KV pages; None in the mixed role."""
    aliases: tuple[str, ...] = ()
    """Further names of the model."""
    cors: Cors | None = None
    """Which web pages may send requests."""
    drain_seconds: float = 0.0
    """How long what runs may take before the engine ends, or takes another role."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which requests may call the model."""
        return (self.model, *self.aliases)


class Service:
    """The state of the API process. `text` is None until the model's files are read."""

    def __init__(
        self,
        identity: Identity,
        client: EngineClient,
        gate: Gate,
        metrics: EngineMetrics,
        clocks: Clocks,
        record: Record | None = None,
    ) -> None:
        """`record`: takes spans."""
        self.record = record
        self.identity = identity
        self.client = client
        self.gate = gate
        self.metrics = metrics
        self.clocks = clocks
        self.signatures = SignatureCheck(
            clocks.unix, identity.handover_keys, identity.requires_signature
        )
        self.changes_role = False
        """Whether it finishes its work, to take another role."""
        self.text: ModelText | None = None
        self._logged_fields: set[str] = set()
        self._routers: dict[str, float] = {}
        """Time until which each router counts, by its name."""

    @property
    def role(self) -> Role:
        """What the engine does now."""
        return self.client.role or self.identity.role

    @property
    def role_check(self) -> RoleCheck:
        """Signed headers that a request needs in the engine's current role."""
        return RoleCheck(self.role, self.signatures)

    def role_taken(self) -> None:
        """The engine has another role than before."""
        identity = self.identity
        self.metrics.identify(identity.model, self.role, identity.pool_revision)

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be served."""
        return (
            self.text is not None
            and self.client.ready is not None
            and self.client.healthy()
            and not self.gate.closed
        )

    @property
    def adapters(self) -> dict[str, str]:
        """Keys of the adapters that requests may name, by name."""
        ready = self.client.ready
        return {adapter.name: adapter.key for adapter in ready.adapters.loaded} if ready else {}

    def adapter_key(self, model: str | None) -> str:
        """What a request that names this model is generated with; empty: the model alone.

        Raises:
            ModelNotFoundError: it is neither a name of the model nor an adapter of it.
        """
        names, adapters = self.identity.names, self.adapters
        if model is None or model in names:
            return ""
        if model not in adapters:
            raise ModelNotFoundError(model, (*names, *adapters))
        return adapters[model]

    def served_model(self) -> ServedModel:
        """The loaded model and this server's bounds; raises UnavailableError while it loads."""
        text, engine = self.text, self.client.ready
        if text is None or engine is None:
            raise UnavailableError("the model is being loaded")
        return ServedModel(
            text,
            Limits(engine.context_length_tokens, engine.kv_pool_tokens),
            engine.vocabulary_size,
            max_choices=self.identity.max_choices,
            strict=self.identity.strict_requests,
        )

    def generator(self) -> Generator:
        """The generator for the loaded model; raises UnavailableError while it loads."""
        if self.text is None:
            raise UnavailableError("the model is being loaded")
        text = self.text
        return Generator(
            self.client, text.tokenizer, text.token_texts, lambda: secrets.token_hex(12)
        )

    def answer_identity(self) -> str:
        """Equal on all engines that may go on with an answer of this one; raises UnavailableError
        while the model loads."""
        text, engine = self.text, self.client.ready
        if text is None or engine is None:
            raise UnavailableError("the model is being loaded")
        return answer_identity(self._fingerprint(engine), self.identity.model, text)

    def _fingerprint(self, engine: EngineReady) -> KvFingerprint:
        identity = self.identity
        return kv_fingerprint(
            identity.model_uri, identity.model_revision, identity.tensor_parallel_size, engine
        )

    def log_ignored(self, fields: Sequence[str]) -> None:
        """Logs unknown fields of requests, each once."""
        for name in fields:
            if name not in self._logged_fields and len(self._logged_fields) < _MAX_LOGGED_FIELDS:
                self._logged_fields.add(name)
                _log.warning("ignored in a request: %s (strictRequests would refuse it)", name)

    def load_report(self, router: str | None = None) -> LoadReport:
        """The engine's last report, with what only this process knows. `router`: the name of the
        router that asks for it.

        Raises:
            UnavailableError: there is none, since no model is loaded.
        """
        engine, load = self.client.ready, self.client.load
        if engine is None or load is None or self.client.failure is not None:
            raise UnavailableError("there is no load report: the model is not loaded")
        self._note_router(router)
        role, has_keys = self.role, self.identity.handover_keys is not None
        answers = role is not Role.PREFILL
        slo = self.metrics.slo_counts(self.clocks.monotonic()) if answers else None
        return LoadReport(
            role=role,
            epoch=engine.epoch,
            revision=self.identity.pool_revision,
            kv_fingerprint=self._fingerprint(engine),
            accelerator=self.identity.accelerator,
            time_seconds=load.time_seconds,
            draining=self.gate.closed or self.changes_role,
            max_running_requests=engine.max_running_requests,
            max_queued_requests=engine.max_queued_requests,
            page_size_tokens=engine.page_size_tokens,
            bootstrap_port=engine.bootstrap_port or None,
            handover_version=None if role is Role.MIXED else HANDOVER_VERSION,
            handover=_wire(self.identity.kv_transfer, load.handover),
            private_calls=answers and has_keys,
            answer_identity=None if self.text is None else self.answer_identity(),
            figures=load.figures,
            slo=slo,
            slo_ttft_seconds=self.metrics.slo_ttft_seconds if answers else None,
            routers=len(self._routers),
            adapters=self.adapters,
            adapters_failed=engine.adapters.failed,
            adapters_file=engine.adapters.file or None,
            start=engine.start,
        )

    def _note_router(self, name: str | None) -> None:
        now = self.clocks.monotonic()
        self._routers = {other: until for other, until in self._routers.items() if until > now}
        if name is not None and (name in self._routers or len(self._routers) < _MAX_ROUTERS):
            self._routers[name] = now + router_seconds(name)


def _wire(transfer: KvTransfer | None, handover: HandoverLoad | None) -> HandoverWire | None:
    """A backend that runs is the configured one, over the configured protocol."""
    if transfer is None or handover is None:
        return None
    return HandoverWire(
        backend=transfer.backend_or_default,
        protocol=transfer.protocol,
        gigabytes_per_second=read_rate(handover.read_bytes, handover.read_seconds),
    )


def answer_identity(fingerprint: KvFingerprint, served_name: str, text: ModelText) -> str:
    """Equal on all engines that may go on with each other's answers; opaque.

    A hash of what the next tokens and their text depend on besides the request: the model and its
    type, its tokenizer, its sampling defaults, its formats of tool calls and reasoning, and its
    name in answers. The shape of KV pages has no part in it. Nor has the chat template: it makes
    the prompt, whose hash is compared with each resume."""
    facts = (
        served_name,
        fingerprint.model,
        fingerprint.model_revision,
        fingerprint.weights,
        fingerprint.kv_dtype,
        text.tokenizer_digest,
        astuple(text.defaults),
        text.tool_format.name if text.tool_format is not None else None,
        text.structured_output_unavailable is None,
        text.reasoning_form.name if text.reasoning_form is not None else None,
    )
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()
