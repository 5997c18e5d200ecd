"""The last step of `make up`: what it says of a service that does not answer as it should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster.errors import ClusterError
from e2e.first_token import stream_answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
PIECE = b'data: {"choices": [{"delta": {"content": "ab"}}]}\n\n'


@contextmanager
def service(answer: bytes) -> Iterator[str]:
    """Answers one request with these bytes, and ends the connection once the client has left.

    To close it before would reset it where a part of the request came late.
    """

    def answer_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def ask(answer: bytes) -> list[str]:
    with service(answer) as url:
        return list(stream_answer(url, "m", "p", 1))


def test_the_pieces_of_an_answer_that_ends() -> None:
    assert ask(HEAD + PIECE + PIECE + b"data: [DONE]\n\n") == ["ab", "ab"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "broke off"),
        (HEAD + PIECE, "broke off before its end"),
        (HEAD + PIECE + b'data: {"error": {"message": "engine died"}}\n\n', "engine died"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate", "late"),
    ],
    ids=["no answer", "cut off", "an error in the stream", "refused"],
)
def test_any_other_end_is_told_in_one_line(answer: bytes, told: str) -> None:
    with pytest.raises(ClusterError, match=told):
        ask(answer)
