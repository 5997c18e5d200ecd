"""What stands between a company's cluster and a hub: a proxy that alone knows the outside's names,
and certificates of the company's own authority."""

from __future__ import annotations

import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Authority:
    """A certificate authority, and the context of a server that it has vouched for."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self.file = folder / "ca.pem"
        ca_key, key, request, made = (folder / n for n in ("ca.key", "key", "request", "made"))
        names, extensions = [f"DNS:{host}" for host in hosts], folder / "extensions"
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl(*new, "-x509", "-subj", "/CN=ca", "-keyout", ca_key, "-out", self.file)
        _openssl(*new, "-subj", "/CN=hub", "-keyout", key, "-out", request)
        signed = ("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", ca_key)
        _openssl(*signed, "-CAcreateserial", "-extfile", extensions, "-out", made)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(made, key)


class Proxy:
    """Tunnels to the addresses of `names`."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self.names = names
        self.asked: list[str] = []
        """What clients wanted to reach, as `host:port`."""
        self.url = ""

    def tunnel(self, client: socket.socket) -> None:
        """One client, from its CONNECT to its end."""
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := client.recv(4096)):
                return
            head += piece
        method, target = head.split()[:2]
        self.asked.append(target.decode())
        port = self.names.get(target.decode().partition(":")[0])
        if method != b"CONNECT" or port is None:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", port)) as hub:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=(hub, client))
            back.start()
            _copy(client, hub)
            back.join()


@contextmanager
def proxying(names: Mapping[str, int]) -> Iterator[Proxy]:
    """A proxy on loopback that leads to these ports of loopback."""
    proxy = Proxy(names)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            proxy.tunnel(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """All bytes of one direction, and their end."""
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side has gone


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
