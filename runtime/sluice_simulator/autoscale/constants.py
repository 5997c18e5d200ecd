"""Every constant of the replays in one place, so that all policies are compared under the same.

An engine is a part of an H200 with Llama-3-8B in bfloat16. The device figures are reached values,
not those of the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class SceneDevice:
    """A whole accelerator with the model on it."""

    flops: float = 788e12 * 0.65
    """Operations per second in prefill."""
    bytes_per_second: float = 4.3e12 * 0.75
    """Memory bandwidth in decode."""
    weight_bytes: float = 15.01e9
    kv_token_bytes: float = 131_072.0
    token_flops: float = 2 * 6.98e9
    """Operations for a token of a prompt, without attention."""
    pair_flops: float = 4 * 32 * 4096.0
    """Operations for a token of a prompt and one that it attends to."""
    step_seconds: float = 0.001
    """Seconds of every step, whatever is in it."""
    kv_pool_tokens: int = 840_000


@dataclass(frozen=True, slots=True)
class ScenePromise:
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
    """Constants of one replay."""

    device: SceneDevice = SceneDevice()
    share: float = 1 / 8
    """Share of the device that one engine has."""
    promise: ScenePromise = ScenePromise(ttft_seconds=2.0, itl_seconds=0.15)
    targets: QueueTargets = QueueTargets()
    chunk_tokens: int = 2048
    """Maximum tokens of a step. With rows that decode, the promised ITL is the bound."""
    seed: int = 0
    """Seed of the router's draws."""
    max_running_requests: int = 256
    boot_seconds: float = 30.0
    """Time from the decision to the first request that is accepted."""
    hand_over_seconds: float = 0.08
    """Time from the end of a prompt until the decode engine has it, in two pools. Mostly the step
    that runs there meanwhile; chosen to match the exact fleet."""
    report_age_seconds: float = 0.5
    """Age of load reports when a policy sees them."""
    hand_back_seconds: float = 0.5
    """Time between two looks of the router at queues while engines have room; its reports are as
    old. Infinite: requests that wait in an engine stay there."""
    first_replicas: int = 2
    """Engines of each pool that are ready when the trace begins."""
    judged_from_seconds: float = 0.0
    """Time before which arrivals do not count in shares: in some traces no policy can serve
    them."""
    max_replicas: int = 64
    engines_move: bool = False
    """Whether an engine may take the other pool's role: only our rule does it."""
    gpu_budget: int | None = None
    """Budget of all engines, one GPU each; draining ones count. None: as many as policies want."""

    @property
    def kv_pool_tokens(self) -> int:
        """Tokens in the KV pool of one engine."""
        return int(self.device.kv_pool_tokens * self.share)

    @property
    def peak_prefill_tokens_per_second(self) -> float:
        """Peak prefill rate of one engine, without attention: others measure it once, and configure
        it."""
        return self.device.flops * self.share / self.device.token_flops


AZURE: Final = Constants()
MOONCAKE: Final = replace(AZURE, share=1 / 2, promise=ScenePromise(10.0, 0.15))
"""Constants for prompts that are ten times as long: 12,000 tokens on average, up to 123,000."""
GOAL: Final = 0.99
"""Required share of the requests whose promise an idle engine could keep."""
