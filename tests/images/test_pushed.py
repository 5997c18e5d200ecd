"""buildah pushes an image to a registry, whole: what the manifest names is there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.prerequisites import IMAGE_PACKAGES, ensure_packages
from e2e.images.buildah import Buildah, Downloads
from e2e.images.builder import BuildahBuilder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TAG = "localhost/sluice-pushed:1"
IMAGE = """
container=$($buildah from scratch)
$buildah add --quiet "$container" "$1" /
$buildah commit --quiet --rm "$container" "$2"
"""


class FakeRegistry:
    """The part of the distribution API that a push needs; `blobs` and `manifests` by their keys."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.refuses = False
        self._uploads: dict[str, bytes] = {}

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/v2/", self._answer)
        upload = "/v2/{name:.+}/blobs/uploads/"
        application.router.add_post(upload, self._begin)
        application.router.add_patch(upload + "{id}", self._append)
        application.router.add_put(upload + "{id}", self._finish)
        application.router.add_head("/v2/{name:.+}/blobs/{digest}", self._look)
        application.router.add_put("/v2/{name:.+}/manifests/{tag}", self._name)
        return application

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _begin(self, request: web.Request) -> web.Response:
        if self.refuses:
            return web.Response(status=401)
        return self._accepted(request, f"{request.path}{len(self._uploads)}", b"")

    async def _append(self, request: web.Request) -> web.Response:
        received = self._uploads[request.path] + await request.read()
        return self._accepted(request, request.path, received)

    def _accepted(self, request: web.Request, location: str, received: bytes) -> web.Response:
        self._uploads[location] = received
        end = max(len(received) - 1, 0)
        headers = {"Location": location, "Range": f"0-{end}", "Docker-Upload-UUID": "1"}
        return web.Response(status=202, headers=headers)

    async def _finish(self, request: web.Request) -> web.Response:
        content = self._uploads[request.path] + await request.read()
        digest = request.query["digest"]
        self.blobs[digest] = content
        return web.Response(status=201, headers={"Docker-Content-Digest": digest})

    async def _look(self, request: web.Request) -> web.Response:
        blob = self.blobs.get(request.match_info["digest"])
        return web.Response(status=404) if blob is None else web.Response(body=blob)

    async def _name(self, request: web.Request) -> web.Response:
        name, tag = request.match_info["name"], request.match_info["tag"]
        self.manifests[f"{name}:{tag}"] = await request.read()
        return web.Response(status=201)


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
async def address(registry: FakeRegistry) -> AsyncIterator[str]:
    runner = web.AppRunner(registry.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield "{}:{}".format(*runner.addresses[0])
    await runner.cleanup()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> BuildahBuilder:
    """With one image, of one file."""
    ensure_packages(IMAGE_PACKAGES)
    folder = tmp_path_factory.mktemp("images")
    built = BuildahBuilder(folder, Downloads(uv_cache=folder, ca_bundle=None))
    (folder / "file").write_text("content")
    command = Buildah(folder).script(IMAGE, folder / "file", TAG)
    subprocess.run(command.argv, env=command.environment, check=True)
    return built


async def test_a_registry_has_the_whole_image_after_a_push(
    builder: BuildahBuilder, registry: FakeRegistry, address: str
) -> None:
    await asyncio.to_thread(builder.push, TAG, f"{address}/team/sluice-pushed:1")
    manifest = json.loads(registry.manifests["team/sluice-pushed:1"])
    for part in (manifest["config"], *manifest["layers"]):
        content = registry.blobs[part["digest"]]
        assert part["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert len(content) == part["size"]


async def test_a_refused_push_says_where_to_log_in(
    builder: BuildahBuilder, registry: FakeRegistry, address: str
) -> None:
    registry.refuses = True
    with pytest.raises(ClusterError, match=f"buildah login {address}"):
        await asyncio.to_thread(builder.push, TAG, f"{address}/team/sluice-pushed:1")
