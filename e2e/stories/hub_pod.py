"""`python -m e2e.stories.hub_pod FOLDER BYTES`, in a pod: a hub with a model and its adapters, and
a bucket with that model.

Both are those of the fetcher's tests; the model's weights have BYTES more than the folder's. On
another port, `GET /state` returns the requests that they got, and `POST /state` sets how the hub
answers.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from e2e.stories.adapters import adapter_files
from e2e.stories.padded import padded_model
from tests.fetch import bucket_server
from tests.fetch.hub_server import Hub, handler_of

HUB_PORT: Final = 8080
STATE_PORT: Final = 8081
BUCKET_PORT: Final = 8082
FOLDER_IN_BUCKET: Final = "sluice/tiny"
REPOSITORY: Final = "sluice/tiny"
ADAPTERS: Final = ("sluice/poems", "sluice/law")
FILES_URL: Final = f"http://hub-files.default.svc:{HUB_PORT}"
"""URL of the hub's files: files of LFS are on another host than the hub itself."""
SETTABLE: Final = frozenset({"revisions", "refusals", "token", "ends_after", "damage"})


class _State(BaseHTTPRequestHandler):
    hub: Hub
    store: bucket_server.Store

    def do_GET(self) -> None:
        self._tell()

    def do_POST(self) -> None:
        given: dict[str, Any] = json.loads(self._body())
        if unknown := given.keys() - SETTABLE:
            return self.send_error(400, f"{sorted(unknown)}: allowed are {sorted(SETTABLE)}")
        for name, value in given.items():
            setattr(self.hub, name, value)
        self.hub.requests.clear()
        self.store.requests.clear()
        self.hub.sent_bytes = 0
        return self._tell()

    def _body(self) -> bytes:
        """The request's body, which kubectl sends in chunks."""
        if length := self.headers["Content-Length"]:
            return self.rfile.read(int(length))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _tell(self) -> None:
        hub = self.hub
        paths = [path for path, _ in hub.requests]
        told = {"requests": paths, "sent_bytes": hub.sent_bytes, "revisions": hub.revisions}
        told["bucket_requests"] = [path for path, _ in self.store.requests]
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(folder: Path, more_bytes: int) -> None:
    files = padded_model(folder, more_bytes)
    config = json.loads(files["config.json"])
    others = {name: adapter_files(config, seed) for seed, name in enumerate(ADAPTERS)}
    hub = Hub(files, repository=REPOSITORY, others=others, files_url=FILES_URL)
    objects = {f"{FOLDER_IN_BUCKET}/{name}": content for name, content in files.items()}
    store = bucket_server.Store(objects)
    state = type("State", (_State,), {"hub": hub, "store": store})
    for port, handler in ((STATE_PORT, state), (BUCKET_PORT, bucket_server.handler_of(store))):
        server = ThreadingHTTPServer(("", port), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ThreadingHTTPServer(("", HUB_PORT), handler_of(hub)).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
