"""Port numbers that more than one component must agree on."""

from __future__ import annotations

from typing import Final

ENGINE_HTTP: Final = 8000
"""Engine API process: OpenAI routes, /health, /ready, /load. Port name `http`."""
ENGINE_METRICS: Final = 8080
"""Engine API process: /metrics, /load, /health, /ready. In no Service. Port name `metrics`."""
ROUTER_HTTP: Final = 8000
"""Router container; the front Service maps `SERVICE_HTTP` to it. Port name `http`."""
ROUTER_METRICS: Final = 8080
"""Router container: /metrics, /load, /health, /ready. In no Service. Port name `metrics`."""
SERVICE_HTTP: Final = 80
"""The front Service's port."""
OPERATOR_METRICS: Final = 8080
OPERATOR_HEALTH: Final = 8081
FETCH_PROGRESS: Final = 8080
"""Fetching container of a Job: /progress."""
BOOTSTRAP: Final = 8998
"""Rendezvous of the KV hand-over on prefill engines."""
KV_TRANSFER_MIN: Final = 15000
KV_TRANSFER_MAX: Final = 17000
"""Mooncake opens two listeners in this range."""
