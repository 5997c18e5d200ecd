"""Every constant of the replays in one place, so that all policies are compared under the same.

An engine is a part of an H200 with Llama-3-8B in bfloat16. The device figures are reached values,
not those of the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Device:
    """A whole accelerator with the model on it."""

    flops: float = 788e12 * 0.65
    """Per second, in prefill."""
    bytes_per_second: float = 4.3e12 * 0.75
    """Of memory, in decode."""
    weight_bytes: float = 15.01e9
    kv_token_bytes: float = 131_072.0
    token_flops: float = 2 * 6.98e9
    """Of a token of a prompt, without attention."""
    pair_flops: float = 4 * 32 * 4096.0
    """Of a token of a prompt and one that it attends to."""
    step_seconds: float = 0.001
    """Of every step, whatever is in it."""
    kv_pool_tokens: int = 840_000


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of a request: both must hold."""

    ttft_seconds: float
    itl_seconds: float
    """Mean of an answer's gaps between tokens."""

    def kept(self, ttft_seconds: float, itl_seconds: float) -> bool:
        return ttft_seconds <= self.ttft_seconds and itl_seconds <= self.itl_seconds


@dataclass(frozen=True, slots=True)
class QueueTargets:
    """`spec.autoscaling.target` of the service, which only our rule reads; None: left out."""

    queue_seconds: float | None = None
    prefill_queue: int | None = None
    decode_queue: int | None = None


@dataclass(frozen=True, slots=True)
class Constants:
    """Of one replay."""

    device: Device = Device()
    share: float = 1 / 8
    """Of the device that one engine has."""
    promise: Promise = Promise(ttft_seconds=2.0, itl_seconds=0.15)
    targets: QueueTargets = QueueTargets()
    chunk_tokens: int = 2048
    """The most of a step. Beside answers it is what keeps the promised ITL."""
    seed: int = 0
    """Of the router's draws."""
    max_running_requests: int = 256
    boot_seconds: float = 30.0
    """From the decision to the first request that is taken."""
    hand_over_seconds: float = 0.08
    """Two pools: from the end of a prompt until the decode engine has it. Mostly the step that runs
    there meanwhile; chosen to match the exact fleet."""
    report_age_seconds: float = 0.5
    """Of load reports when a policy sees them."""
    hand_back_seconds: float = 0.5
    """Time between two looks of the router at queues beside engines with room; its reports are as
    old. Infinite: what waits in an engine stays there."""
    first_replicas: int = 2
    """Of each pool, ready when the trace begins."""
    judged_from_seconds: float = 0.0
    """Requests that arrive before do not count in shares: of some traces nobody can serve them."""
    max_replicas: int = 64
    engines_move: bool = False
    """Whether an engine may take the other pool's role: only our rule does it."""
    gpu_budget: int | None = None
    """Of all engines, one GPU each; draining ones count. None: as many as policies want."""

    @property
    def kv_pool_tokens(self) -> int:
        """Of one engine."""
        return int(self.device.kv_pool_tokens * self.share)

    @property
    def peak_prefill_tokens_per_second(self) -> float:
        """Of one engine, without attention: what others measure once, and configure."""
        return self.device.flops * self.share / self.device.token_flops


AZURE: Final = Constants()
MOONCAKE: Final = replace(AZURE, share=1 / 2, promise=Promise(10.0, 0.15))
"""Prompts are ten times as long: 12,000 tokens on average, up to 123,000."""
GOAL: Final = 0.99
"""Required share: of the requests whose promise an idle engine could keep."""
