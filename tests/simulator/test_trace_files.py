"""Traces from files: what is read, and how a bad line is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluice_simulator.errors import SimulatorError, TraceError, UnusableFileError
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import TraceRequest, at_rate, trace_of, window

MOONCAKE = """\
{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 512, "output_length": 7, "hash_ids": [0]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:59.9000000,374,44
2023-11-16 18:16:00.0000005,396,0
"""


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_mooncake_trace(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "talk.jsonl", MOONCAKE))
    assert trace.name == "talk"
    assert trace.requests == (
        TraceRequest(0.0, 600, 5, (0, 1)),
        TraceRequest(1.5, 512, 7, (0,)),
    )
    assert (trace.seconds, trace.prompt_tokens, trace.output_tokens) == (1.5, 1112, 12)


def test_an_azure_trace_begins_at_0_and_answers_at_least_a_token(tmp_path: Path) -> None:
    first, second = read_trace(_file(tmp_path, "chat.csv", AZURE)).requests
    assert first == TraceRequest(0.0, 374, 44)
    assert second.arrival_seconds == pytest.approx(0.1000005, abs=1e-6)
    assert second.output_tokens == 1


def test_requests_are_sorted_by_arrival(tmp_path: Path) -> None:
    text = "".join(reversed(MOONCAKE.splitlines(keepends=True)))
    assert read_trace(_file(tmp_path, "t.jsonl", text)).requests[0].arrival_seconds == 0


ROW = '"output_length": 5, "hash_ids": [0, 1]}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "'{' is not allowed; allowed: a JSON object"),
        ("[1]", "a JSON object"),
        ('{"timestamp": 1}', "['timestamp'] is not allowed; allowed: an object with input_length"),
        ('{"timestamp": -1, "input_length": 600, ' + ROW, "timestamp: a whole number of at least"),
        ('{"timestamp": 1.5, "input_length": 600, ' + ROW, "{'timestamp': 1.5} is not allowed"),
        (
            '{"timestamp": 1, "input_length": 0, ' + ROW,
            "input_length: a whole number of at least 1",
        ),
        ('{"timestamp": 1, "input_length": true, ' + ROW, "{'input_length': True}"),
        ('{"timestamp": 1, "input_length": 6000, ' + ROW, "hash_ids: 12 whole numbers"),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [0, "a"]}',
            "hash_ids: 2 whole numbers, one per 512 of 600 tokens",
        ),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": 7}',
            "{'hash_ids': 7} is not allowed",
        ),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = _file(tmp_path, "talk.jsonl", MOONCAKE + line + "\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert f"{path}:3: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("yesterday,1,1", "4: 'yesterday' is not allowed; allowed: TIMESTAMP: a time like"),
        ("2023-11-16 18:16:00,,1", "ContextTokens: a whole number of at least 1"),
        ("2023-11-16 18:16:00,1,-3", "'-3' is not allowed; allowed: GeneratedTokens"),
        ("2023-11-16 18:16:00,1", "3 columns"),
    ],
)
def test_a_bad_azure_row_is_named(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(_file(tmp_path, "chat.csv", AZURE + row + "\n"))
    assert says in str(caught.value)


def test_a_csv_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the header TIMESTAMP,ContextTokens,GeneratedTokens"):
        read_trace(_file(tmp_path, "chat.csv", "a,b\n1,2\n"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("trace.txt", b"", "'.txt' is not allowed; allowed: .jsonl (mooncake), .csv (azure)"),
        ("empty.jsonl", b"\n", "holds no request"),
        ("bytes.jsonl", b"\xff\xfe", "not UTF-8 text"),
        ("none.csv", None, "No such file"),
    ],
)
def test_a_file_that_is_no_trace(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnusableFileError) as caught:
        read_trace(path)
    assert says in str(caught.value)
    assert isinstance(caught.value, SimulatorError)


def test_a_window_begins_at_its_start_and_leaves_its_end_out() -> None:
    trace = trace_of("t", [TraceRequest(float(second), 1, 1) for second in range(10)])
    cut = window(trace, 2.0, 3.0)
    assert [request.arrival_seconds for request in cut.requests] == [0.0, 1.0, 2.0]
    assert len(window(trace, 4.0, None).requests) == 6


def test_a_higher_rate_brings_the_same_requests_closer() -> None:
    trace = trace_of("t", [TraceRequest(0.0, 3, 1), TraceRequest(8.0, 4, 2)])
    faster = at_rate(trace, 4.0)
    assert [request.arrival_seconds for request in faster.requests] == [0.0, 2.0]
    assert faster.prompt_tokens == 7


@pytest.mark.parametrize("name", ["none", "none.csv"])
def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableFileError) as caught:
        read_trace(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: No such file or directory"
