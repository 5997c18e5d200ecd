"""`GET /progress`: the last line of progress as JSON, 503 before the first."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

TIMEOUT_SECONDS: Final = 5.0
"""For one request: whoever sends none does not stay."""


class ProgressServer:
    """Serves until the process ends; `show` says what."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError where it cannot listen; port 0: any that is free."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        self._server: _Server = server((host, port), _Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def show(self, fields: Mapping[str, object]) -> None:
        """What is answered from now on."""
        self._server.shown = json.dumps(dict(fields)).encode()

    def close(self) -> None:
        """Ends it before the process does."""
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
        """Output is for events."""
