"""A store on loopback that speaks as much of S3 as a download needs: the list of a prefix, page by
page, and GET with Range and If-Match, and the ways in which it fails. Knows the protocol, not the
fetcher; does not check signatures. Google's XML API is the same for both requests."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2
"""Objects in one answer: the list comes in pages, as that of a large bucket."""


def safetensors(size_bytes: int, drawn: bytes) -> bytes:
    """A file in the format of weights, with one tensor of `size_bytes`."""
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    body = (drawn * (size_bytes // len(drawn) + 1))[:size_bytes]
    return len(header).to_bytes(8, "little") + header + body


LARGE_BYTES = 100_000


@dataclass
class Store:
    """What it holds and how it fails; tests change it between requests."""

    objects: dict[str, bytes]
    """By key."""
    bucket: str = "models"
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """Status and error code of the next answers, whatever is asked."""
    ends_after: list[int] = field(default_factory=list)
    """Bytes after which the next answers with a whole large object break off."""
    changes_after: dict[str, bytes | None] = field(default_factory=dict)
    """Objects that are replaced once the bucket was listed; None: removed."""
    honours_if_match: bool = True
    credentials: dict[str, str] = field(default_factory=dict)
    """What it gives as the agent of a node, which pods have their identity from."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path with query, and headers of each."""
    sent_bytes: int = 0
    url: str = ""


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body waits for no acknowledgement of its head
    store: Store

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.store.requests.append((self.path, headers))
        if self.store.refusals:
            return self._refuse(*self.store.refusals.pop(0))
        parts = urlsplit(self.path)
        if parts.path == "/v1/credentials":
            return self._answer(200, json.dumps(self.store.credentials).encode(), {})
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket != self.store.bucket:
            return self._refuse(404, "NoSuchBucket")
        if not key:
            return self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        if key not in self.store.objects:
            return self._refuse(404, "NoSuchKey")
        return self._object(self.store.objects[key], headers)

    def _list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        keys = sorted(key for key in self.store.objects if key.startswith(prefix))
        direct = [key for key in keys if "/" not in key.removeprefix(prefix)]
        begin = int(query.get("continuation-token", "0"))
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.store.objects[key])}</Size>"
            f"<ETag>{etag(self.store.objects[key])}</ETag>"
            "<LastModified>2026-11-28T10:00:00.000Z</LastModified></Contents>"
            for key in direct[begin : begin + PAGE]
        )
        more = begin + PAGE < len(direct)
        token = f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>" if more else ""
        head = f"<Name>{self.store.bucket}</Name><KeyCount>{len(direct)}</KeyCount>"
        body = f"<ListBucketResult>{head}{token}<IsTruncated>{str(more).lower()}</IsTruncated>"
        self._answer(200, f"{body}{entries}</ListBucketResult>".encode(), {})
        if not more:
            changed: dict[str, bytes | None] = {**self.store.objects, **self.store.changes_after}
            self.store.objects = {key: body for key, body in changed.items() if body is not None}
            self.store.changes_after = {}

    def _object(self, content: bytes, headers: dict[str, str]) -> None:
        matches = headers.get("if-match", etag(content)) == etag(content)
        if self.store.honours_if_match and not matches:
            return self._refuse(412, "PreconditionFailed")
        is_whole = "range" not in headers and len(content) > LARGE_BYTES
        ends = self.store.ends_after.pop(0) if is_whole and self.store.ends_after else None
        sent = {"ETag": etag(content), "Last-Modified": "Sat, 28 Nov 2026 10:00:00 GMT"}
        if "range" not in headers:
            return self._answer(200, content, sent, ends)
        offset = int(headers["range"].removeprefix("bytes=").removesuffix("-"))
        sent["Content-Range"] = f"bytes {offset}-{len(content) - 1}/{len(content)}"
        return self._answer(206, content[offset:], sent, ends)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>of the store</Message></Error>"
        self._answer(status, body.encode(), {})

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], ends: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:ends])
        self.store.sent_bytes += len(body[:ends])
        self.close_connection = self.close_connection or ends is not None

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def handler_of(store: Store) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"store": store})


@contextmanager
def serving(store: Store, context: ssl.SSLContext | None = None) -> Iterator[Store]:
    """The store on a free port; with a `context` it speaks TLS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(store)) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        store.url = f"{'https' if context else 'http'}://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
