"""The socket that the engine's HTTP server listens on."""

from __future__ import annotations

import socket

from sluice_runtime.server.listener import listen


def test_the_second_write_of_an_answer_does_not_wait_for_the_first_to_be_acknowledged() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
