"""Computes the engine's KV fingerprint, in its API process and its engine process alike."""

from __future__ import annotations

from sluice_contract.config.kv_transfer import KvFingerprint

from sluice_runtime.wire.messages import EngineReady


def kv_fingerprint(
    model_uri: str, model_revision: str | None, tensor_parallel_size: int, engine: EngineReady
) -> KvFingerprint:
    """Fingerprint of a ready engine's pages."""
    return KvFingerprint(
        model=model_uri,
        model_revision=model_revision,
        weights=engine.weights,
        page_size_tokens=engine.page_size_tokens,
        kv_dtype=engine.kv_dtype,
        tensor_parallel_size=tensor_parallel_size,
    )
