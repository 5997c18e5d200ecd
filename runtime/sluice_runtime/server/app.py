"""The ASGI application: routes, error format, gate. Knows no socket and no process."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from sluice_runtime.server.failures import install_error_handlers
from sluice_runtime.server.gate import GateMiddleware
from sluice_runtime.server.native_routes import native_router
from sluice_runtime.server.openai_routes import openai_router
from sluice_runtime.server.service import Service
from sluice_runtime.server.status_routes import status_router


def make_app(service: Service) -> ASGIApp:
    """The whole application; the gate is outside, so that every response has its request id."""
    return GateMiddleware(routes_of(service), service.gate)


def routes_of(service: Service) -> FastAPI:
    """All routes, with their error format; the OpenAPI document is a route of ours."""
    app = FastAPI(title="Sluice", openapi_url=None, redirect_slashes=False)
    install_error_handlers(app)
    app.include_router(openai_router(service))
    app.include_router(native_router(service))
    app.include_router(status_router(service))
    return app
