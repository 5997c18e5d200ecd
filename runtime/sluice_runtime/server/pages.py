"""Routes for people: web pages, and the version of Sluice."""

from __future__ import annotations

from fastapi import APIRouter
from sluice_contract.pages import PAGES, VERSION_PATH, Page
from sluice_contract.version import VERSION
from starlette.responses import JSONResponse, Response

from sluice_runtime.server.response_models import VersionAnswer


def for_people() -> APIRouter:
    """Makes the routes; the pages stand in no OpenAPI document."""
    router = APIRouter()

    @router.get(VERSION_PATH, response_model=VersionAnswer)
    async def version() -> Response:
        """The version of Sluice."""
        return JSONResponse({"version": VERSION})

    for path, page in PAGES.items():
        _add(router, path, page)
    return router


def _add(router: APIRouter, path: str, page: Page) -> None:
    @router.get(path, include_in_schema=False)
    async def show() -> Response:
        return Response(page.body, headers=dict(page.headers))
