"""What the routes are made of: one object with the parts of the API process.

Built by the composition root; knows no route.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from sluice_contract.labels import Role
from sluice_contract.load import LoadReport

from sluice_runtime.errors import UnavailableError
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.gate import Gate
from sluice_runtime.server.generation import Generator
from sluice_runtime.server.metrics import EngineMetrics
from sluice_runtime.server.prompts import ModelText, Planner


@dataclass(frozen=True)
class Clocks:
    """`monotonic` is shared with the engine process; `unix` is for people."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


@dataclass(frozen=True)
class Identity:
    """What this server is called, and what it takes."""

    model: str
    role: Role
    max_body_bytes: int
    seed: int
    started_unix: int


class Service:
    """The state of the API process. `text` is None until the model's files are read."""

    def __init__(
        self,
        identity: Identity,
        client: EngineClient,
        gate: Gate,
        metrics: EngineMetrics,
        clocks: Clocks,
    ) -> None:
        self.identity = identity
        self.client = client
        self.gate = gate
        self.metrics = metrics
        self.clocks = clocks
        self.text: ModelText | None = None
        self._seeds = random.Random(identity.seed)  # noqa: S311  (sampling, no secret)

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be served."""
        return (
            self.text is not None
            and self.client.ready is not None
            and self.client.healthy
            and not self.gate.closed
        )

    def planner(self) -> Planner:
        """The planner for the loaded model; raises UnavailableError while it loads."""
        text, engine = self.text, self.client.ready
        if text is None or engine is None:
            raise UnavailableError("the model is being loaded")
        limits = Limits(engine.context_length_tokens, engine.kv_pool_tokens)
        return Planner(text, limits, engine.vocabulary_size, lambda: self._seeds.getrandbits(63))

    def generator(self) -> Generator:
        """The generator for the loaded model; raises UnavailableError while it loads."""
        if self.text is None:
            raise UnavailableError("the model is being loaded")
        text = self.text
        return Generator(
            self.client, text.tokenizer, text.token_texts, lambda: secrets.token_hex(12)
        )

    def load_report(self) -> LoadReport:
        """The engine's last report with what only this process knows.

        Raises:
            UnavailableError: there is none, since no model is loaded.
        """
        engine, load = self.client.ready, self.client.load
        if engine is None or load is None or self.client.failure is not None:
            raise UnavailableError("there is no load report: the model is not loaded")
        return LoadReport(
            role=self.identity.role,
            epoch=engine.epoch,
            time_seconds=load.time_seconds,
            draining=self.gate.closed,
            queued_requests=load.queued_requests,
            queued_tokens=load.queued_tokens,
            running_requests=load.running_requests,
            max_running_requests=engine.max_running_requests,
            kv_pages_total=load.kv_pages_total,
            kv_pages_free=load.kv_pages_free,
            kv_pages_evictable=load.kv_pages_evictable,
            page_size_tokens=engine.page_size_tokens,
            queued_work_seconds=load.queued_work_seconds,
        )
