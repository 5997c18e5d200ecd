"""Progress of a download (bytes, speed, time left), and the server that gives it as JSON at `GET
/progress`.

Several threads add to the meter; time is passed in. The server answers with the latest progress, or
with 503 before the first.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Speed is averaged over this many seconds."""


@dataclass(frozen=True)
class Progress:
    bytes: int
    total: int
    bytes_per_second: float
    eta_seconds: float | None
    """Seconds left; None if nothing arrived recently."""

    def fields(self) -> dict[str, int | None]:
        """Fields for a line of output and for `GET /progress`."""
        return {
            "bytes": self.bytes,
            "total": self.total,
            "bytesPerSecond": round(self.bytes_per_second),
            "etaSeconds": None if self.eta_seconds is None else round(self.eta_seconds),
        }


class Meter:
    """Counts bytes and calls `report` at most every `every_seconds`."""

    def __init__(
        self,
        total: int,
        clock: Callable[[], float],
        report: Callable[[Progress], None],
        every_seconds: float = 2.0,
    ) -> None:
        self._total, self._clock, self._report = total, clock, report
        self._every_seconds = every_seconds
        self._there = 0
        self._received = 0
        self._reported_at = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._reported_at, 0)])
        self._lock = threading.Lock()

    def already_there(self, count: int) -> None:
        """Adds bytes left by an earlier run; negative if they turn out to be unusable."""
        with self._lock:
            self._there += count

    def received(self, count: int) -> None:
        """Adds bytes that were just received."""
        with self._lock:
            self._there += count
            self._received += count
            now = self._clock()
            if now - self._reported_at >= self._every_seconds:
                self._reported_at = now
                self._report(self._progress(now))

    def progress(self) -> Progress:
        with self._lock:
            return self._progress(self._clock())

    def _progress(self, now: float) -> Progress:
        self._seen.append((now, self._received))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        speed = (self._received - before) / (now - since) if now > since else 0.0
        left = (self._total - self._there) / speed if speed else None
        return Progress(self._there, self._total, speed, left)


TIMEOUT_SECONDS: Final = 5.0
"""Longest time for one request, after which an idle connection is closed too."""


class ProgressServer:
    """HTTP server of the progress; serves until `close` or the process's end. `show` sets the
    answer."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError if it cannot listen on the port; port 0: any free port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        self._server: _Server = server((host, port), _Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def show(self, fields: Mapping[str, object]) -> None:
        """Sets the answer from now on."""
        self._server.shown = json.dumps(dict(fields)).encode()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    shown: bytes | None = None


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        body = self.server.shown if self.path == "/progress" else None
        status = 200 if body is not None else 503 if self.path == "/progress" else 404
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Writes nothing: stdout is for events."""
