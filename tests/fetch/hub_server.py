"""A hub on loopback: model info with files, `resolve` that redirects LFS files to another host with
ranges, and the ways in which it fails. Knows the protocol, not the fetcher."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "0123"
OTHER_COMMIT = "decade" * 6 + "4567"


def etag(name: str, content: bytes) -> str:
    """The hub's: sha256 of LFS files, git's sha1 of others."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """What it serves and how it fails; tests change it between requests."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, COMMIT: COMMIT})
    repository: str = "org/name"
    others: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of further repositories, of the same revisions."""
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Status and headers of the next answers, whatever is asked."""
    refused_files: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """Status and headers of every answer for these files."""
    token: str | None = None
    """Without it content is gated."""
    ends_after: list[int] = field(default_factory=list)
    """Bytes after which the next answers with content of LFS files break off."""
    damage: int = 0
    """So many next answers with content of LFS files have a byte turned over."""
    stalls_at: int | None = None
    """Once so many bytes were sent, content of LFS files stalls until `go_on`."""
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    knows_ranges: bool = True
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers of each."""
    sent_bytes: int = 0
    url: str = ""
    files_url: str = ""

    def files_of(self, repository: str) -> dict[str, bytes] | None:
        """By name; None where there is no such repository."""
        return self.files if repository == self.repository else self.others.get(repository)

    def info(self, repository: str, revision: str) -> dict[str, Any]:
        siblings = []
        for name, content in (self.files_of(repository) or {}).items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content)}
            entry["blobId"] = hashlib.sha1(name.encode()).hexdigest()
            if name.endswith(".safetensors"):
                sha256 = etag(name, content)
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            else:
                entry["blobId"] = etag(name, content)
            siblings.append(entry)
        return {"id": repository, "sha": self.revisions[revision], "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body waits for no acknowledgement of its head
    hub: Hub

    def setup(self) -> None:
        """Little lies between the two ends: what was sent, the client has."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

    def do_GET(self) -> None:
        self.hub.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.hub.refusals:
            status, headers = self.hub.refusals.pop(0)
            return self._answer(status, b"", headers)
        path = urlsplit(self.path).path
        if match := re.fullmatch(r"/api/models/(\w+/\w+)/revision/(.+)", path):
            return self._info(match[1], unquote(match[2]))
        if match := re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/(.+)", path):
            return self._resolve(match[1], match[3])
        if match := re.fullmatch(r"/lfs/(\w+/\w+)/(.+)", path):
            return self._content(match[1], match[2])
        return self._answer(404, b"", {})

    def _info(self, repository: str, revision: str) -> None:
        if self.hub.files_of(repository) is None:
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in self.hub.revisions:
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return self._answer(200, json.dumps(self.hub.info(repository, revision)).encode(), {})

    def _resolve(self, repository: str, name: str) -> None:
        if name in self.hub.refused_files:
            status, headers = self.hub.refused_files[name]
            return self._answer(status, b"", headers)
        given = self.headers.get("Authorization")
        if self.hub.token is not None and given != f"Bearer {self.hub.token}":
            return self._answer(403 if given else 401, b"", {"X-Error-Code": "GatedRepo"})
        if name.endswith(".safetensors"):
            place = f"{self.hub.files_url}/lfs/{repository}/{name}"
            return self._answer(302, b"", {"Location": place})
        return self._content(repository, name)

    def _content(self, repository: str, name: str) -> None:
        content = (self.hub.files_of(repository) or {})[name]
        lfs = name.endswith(".safetensors")
        if lfs and self.hub.damage:
            self.hub.damage -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        status, offset = 200, 0
        if (range_ := self.headers.get("Range")) and self.hub.knows_ranges:
            status, offset = 206, int(range_.removeprefix("bytes=").removesuffix("-"))
        ends = self.hub.ends_after.pop(0) if lfs and self.hub.ends_after else None
        self._answer(status, content[offset:], {"ETag": etag(name, content)}, ends)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], ends: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.close_connection = self.close_connection or ends is not None
        try:
            self._send(memoryview(body)[:ends])
        except OSError:
            self.close_connection = True  # the client was killed

    def _send(self, body: memoryview) -> None:
        for begin in range(0, len(body), 1 << 16):
            piece = body[begin : begin + (1 << 16)]
            self.wfile.write(piece)
            self.hub.sent_bytes += len(piece)
            if self.hub.stalls_at is not None and self.hub.sent_bytes >= self.hub.stalls_at:
                stalled, go_on = self.hub.stalled, self.hub.go_on
                stalled.set()
                go_on.wait(60)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    """What answers requests as `hub` does."""
    return type("Handler", (_Handler,), {"hub": hub})


@contextmanager
def serving(hub: Hub, context: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """The hub on two addresses, since files of LFS are on another host than the hub itself; with a
    `context` both speak TLS."""
    handler = handler_of(hub)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as first,
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as second,
    ):
        if context is not None:
            for server in (first, second):
                server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https" if context else "http"
        hub.url = f"{scheme}://127.0.0.1:{first.server_port}"
        hub.files_url = f"{scheme}://localhost:{second.server_port}"
        threads = [threading.Thread(target=s.serve_forever, args=(0.01,)) for s in (first, second)]
        for thread in threads:
            thread.start()
        try:
            yield hub
        finally:
            for server in (first, second):
                server.shutdown()
            for thread in threads:
                thread.join()
