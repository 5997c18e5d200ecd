"""`/health`, `/ready`, `/load`, `/metrics`: what kubelet, router, autoscaler and people read; and
`/flush_cache`, which is done.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.metrics import CONTENT_TYPE
from sluice_runtime.server.service import Service


def native_router(service: Service) -> APIRouter:
    """Sluice's own routes."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Liveness: this process answers, and the engine neither died nor hangs."""
        if not service.client.healthy:
            failure = service.client.failure
            raise UnavailableError(failure.message if failure else "the engine process is silent")
        return JSONResponse({"status": "ok"})

    @router.get("/ready")
    async def ready() -> Response:
        """Readiness: the model is loaded and the server does not drain."""
        if not service.ready:
            state = "draining" if service.gate.closed else "the model is not loaded"
            raise UnavailableError(f"not ready: {state}")
        return JSONResponse({"status": "ready"})

    @router.get("/load")
    async def load() -> Response:
        return JSONResponse(service.load_report().to_json_dict())

    @router.post("/flush_cache")
    async def flush_cache() -> Response:
        """Requests that come from now on reuse nothing that was computed before."""
        service.client.flush_cache()
        return JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return router
