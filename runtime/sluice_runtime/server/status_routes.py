"""What kubelet, router, autoscaler and people read. None of it asks the engine."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.metrics import CONTENT_TYPE
from sluice_runtime.server.openapi import document
from sluice_runtime.server.service import Service


def status_router(service: Service) -> APIRouter:
    """`/health`, `/ready`, `/load`, `/metrics`, `/openapi.json`."""
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

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    @router.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(document())

    return router
