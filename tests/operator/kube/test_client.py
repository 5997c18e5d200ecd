"""The client: paths, paging, and what an error answer becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import (
    ApiError,
    ConflictError,
    FailedApplyError,
    NotFoundError,
    OperatorError,
    TerminatingNamespaceError,
    UnavailableError,
)
from sluice_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Reference


class Server:
    """Answers with what the test says."""

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        self.answer = answer

    async def send(self, request: Request) -> Response:
        return self.answer(request)


def client(answer: Callable[[Request], Response], writes: list[Any] | None = None) -> ApiClient:
    seen = [] if writes is None else writes
    return ApiClient(Server(answer), lambda verb, plural: seen.append((verb, plural)))


def refuse(status: int, **extra: Any) -> Callable[[Request], Response]:
    body = {"kind": "Status", "reason": "Because", "message": "of this"}
    return lambda request: Response(status, body, **extra)


def test_paths() -> None:
    assert path(POD, None) == "/api/v1/pods"
    assert path(POD, "ns", "a") == "/api/v1/namespaces/ns/pods/a"
    deployment = "/apis/apps/v1/namespaces/ns/deployments/a/status"
    assert path(DEPLOYMENT, "ns", "a", "status") == deployment


async def test_a_long_list_is_read_page_by_page() -> None:
    def answer(request: Request) -> Response:
        token = request.query.get("continue", "0")
        following = {"0": "1", "1": "2", "2": ""}[token]
        assert request.query["labelSelector"] == "a=b"
        items = [{"metadata": {"name": f"p{token}"}}]
        return Response(200, {"metadata": {"continue": following}, "items": items})

    items = await client(answer).list_objects(POD, "ns", "a=b")
    assert [item["metadata"]["name"] for item in items] == ["p0", "p1", "p2"]
    assert items[0]["kind"] == "Pod"
    assert items[0]["apiVersion"] == "v1"


async def test_an_empty_list_of_metadata_has_null_items() -> None:
    empty = Response(200, {"metadata": {}, "items": None})
    pages = client(lambda request: empty).pages(POD, None, metadata_only=True)
    assert [page async for page in pages] == [([], "")]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFoundError),
        (409, ConflictError),
        (422, ApiError),
        (403, ApiError),
        (429, UnavailableError),
        (500, FailedApplyError),
        (503, FailedApplyError),
    ],
)
async def test_an_error_answer_says_what_was_asked_and_why_not(
    status: int, kind: type[OperatorError]
) -> None:
    with pytest.raises(kind, match=r"PATCH .*configmaps/a: \d+ Because: of this"):
        await client(refuse(status)).apply(
            CONFIG_MAP, {"metadata": {"namespace": "ns", "name": "a"}}
        )


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (403, {"causes": [{"reason": "NamespaceTerminating"}]}, TerminatingNamespaceError),
        (404, {"name": "ns", "kind": "namespaces"}, TerminatingNamespaceError),
        (403, {"causes": [{"reason": "QuotaExceeded"}]}, ApiError),
        (404, {"name": "a", "kind": "configmaps"}, NotFoundError),
        (409, {"causes": [{"reason": "NamespaceTerminating"}]}, ConflictError),
    ],
)
async def test_a_namespace_that_goes_is_told_from_other_refusals(
    status: int, details: dict[str, Any], kind: type[ApiError]
) -> None:
    body = {"kind": "Status", "reason": "Because", "message": "of this", "details": details}
    api = client(lambda request: Response(status, body))
    for write in (api.apply, api.create):
        with pytest.raises(ApiError) as caught:
            await write(CONFIG_MAP, {"metadata": {"namespace": "ns", "name": "a"}})
        assert type(caught.value) is kind


async def test_a_failed_read_and_an_answer_of_another_server_are_no_failed_apply() -> None:
    body = {"metadata": {"namespace": "ns", "name": "a"}}
    gateway = Response(502, "<html>")
    for request in (
        client(refuse(500)).list_objects(POD, "ns"),
        client(lambda request: gateway).apply(CONFIG_MAP, body),
    ):
        with pytest.raises(UnavailableError) as caught:
            await request
        assert not isinstance(caught.value, FailedApplyError)


async def test_retry_after_is_kept() -> None:
    with pytest.raises(UnavailableError) as caught:
        await client(refuse(429, retry_after_seconds=7.0)).list_objects(POD, "ns")
    assert caught.value.retry_after_seconds == 7.0


async def test_what_is_not_there_reads_as_none_and_deletes_quietly() -> None:
    api = client(refuse(404))
    assert await api.get(POD, "ns", "a") is None
    await api.delete(Reference(POD, "ns", "a"))


async def test_every_write_is_counted_and_no_read_is() -> None:
    writes: list[Any] = []
    body = {"metadata": {"namespace": "ns", "name": "a"}, "items": [], "resources": []}
    api = client(lambda request: Response(200, body), writes)
    await api.get(POD, "ns", "a")
    await api.list_objects(POD, None)
    await api.apply(CONFIG_MAP, body)
    await api.create(CONFIG_MAP, body)
    await api.replace(CONFIG_MAP, body)
    await api.delete(Reference(CONFIG_MAP, "ns", "a"))
    assert [verb for verb, _ in writes] == ["apply", "create", "update", "delete"]


@pytest.mark.parametrize(
    ("groups", "status", "plurals", "served"),
    [
        ([], 404, [], False),
        ([], 200, ["deployments"], False),
        (["apps"], 404, [], False),
        (["apps"], 200, ["replicasets"], False),
        (["apps"], 200, ["deployments"], True),
    ],
)
async def test_a_kind_is_served_once_it_can_be_discovered(
    groups: list[str], status: int, plurals: list[str], served: bool
) -> None:
    def answer(request: Request) -> Response:
        if request.path == "/apis":
            return Response(200, {"groups": [{"name": name} for name in groups]})
        assert request.path == "/apis/apps/v1"
        return Response(status, {"resources": [{"name": name} for name in plurals]})

    assert await client(answer).serves(DEPLOYMENT) is served
