"""The device has the rows that the host has, also where memory was short for a while."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.engine.device import Column, HostDevice
from sluice_runtime.engine.rows import RowTable, host_inputs
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.scheduler.batch import (
    Batch,
    ExtendRow,
    ForwardMode,
    PagesAppended,
    PagesReplaced,
    RowAdded,
    RowTrimmed,
    VerifyRow,
)
from sluice_runtime.wire.messages import Sampling
from torch import Tensor

from tests.runtime.engine.late_device import LateDevice

ROWS, MAX_PAGES, PAGES = 4, 6, 12
SHAPE = KvShape(1, 1, 2, torch.float32)
CHANGE = st.tuples(
    st.integers(0, ROWS - 1),
    st.sampled_from(["add", "resume", "append", "replace", "trim", "drop", "drop and add"]),
    st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=2),
)


class ShortDevice(LateDevice):
    """Finds no memory while `short`."""

    short = False

    def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
        if self.short:
            raise MemoryError
        return super().upload(columns)


class Expected:
    """What the rows must be, kept the plain way."""

    def __init__(self) -> None:
        self.pages: list[list[int]] = [[] for _ in range(ROWS)]
        self.last_tokens = [0] * ROWS

    def batch(self, step: int, row: int, kind: str, page_ids: list[int]) -> Batch:
        held, ids = self.pages[row], tuple(page_ids)
        replaced: tuple[PagesReplaced, ...] = ()
        trimmed: tuple[RowTrimmed, ...] = ()
        dropped: tuple[int, ...] = ()
        added: tuple[RowAdded, ...] = ()
        appended: tuple[PagesAppended, ...] = (PagesAppended(row, ids),)
        if kind == "replace" and held:
            held[0] = ids[0]
            replaced, appended = (PagesReplaced(row, 0, ids[:1]),), ()
        elif kind == "trim" and held:
            del held[1:]
            self.last_tokens[row] = 5 + step
            trimmed, appended = (RowTrimmed(row, 2, 1, 5 + step),), ()
        elif kind in ("drop", "drop and add") or len(held) + len(ids) > MAX_PAGES:
            held.clear()
            dropped = (row,)
            appended = appended if kind == "drop and add" else ()
        elif kind == "resume" and not held:
            self.last_tokens[row] = 5 + step
            added = (RowAdded(row, "r", Sampling(), 3, computed_tokens=3, last_token=5 + step),)
        held += [page for each in appended for page in each.page_ids]
        return Batch(
            step,
            ForwardMode.IDLE,
            replaced_pages=replaced,
            trimmed_rows=trimmed,
            dropped_rows=dropped,
            added_rows=added,
            appended_pages=appended,
        )

    def table(self) -> list[list[int]]:
        return [held + [PAGES] * (MAX_PAGES - len(held)) for held in self.pages]


@given(st.lists(st.tuples(CHANGE, st.booleans()), max_size=30))
def test_after_each_send_the_device_has_all_changes(
    changes: list[tuple[tuple[int, str, list[int]], bool]],
) -> None:
    device, expected = ShortDevice(), Expected()
    rows = RowTable(ROWS, MAX_PAGES, PagePool(SHAPE, PAGES, 2), device, clears_pages=True)
    for step, (change, short) in enumerate(changes):
        rows.apply(expected.batch(step, *change))
        assert rows.pages.tolist() == expected.table()
        device.short = short
        try:
            rows.send()
        except MemoryError:
            continue
        assert rows.page_table.tolist() == expected.table()
        assert rows.last_tokens[:-1].tolist() == expected.last_tokens


def test_a_row_that_leaves_sends_no_page_to_the_device() -> None:
    pages, sent = tuple(range(MAX_PAGES)), list[int]()

    class CountingDevice(LateDevice):
        def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
            sent.append(sum(len(column) for column in columns))
            return super().upload(columns)

    for clears_pages, most in ((True, ROWS), (False, 0)):
        pool = PagePool(SHAPE, PAGES, 2)
        rows = RowTable(ROWS, MAX_PAGES, pool, CountingDevice(), clears_pages=clears_pages)
        appended = tuple(PagesAppended(row, pages) for row in range(ROWS))
        rows.apply(Batch(1, ForwardMode.IDLE, appended_pages=appended))
        rows.send()
        sent.clear()
        rows.apply(Batch(2, ForwardMode.IDLE, dropped_rows=tuple(range(ROWS))))
        rows.send()
        assert sum(sent) == most
        assert rows.pages.tolist() == [[PAGES] * MAX_PAGES] * ROWS


def test_every_token_of_a_verified_row_is_followed_by_a_sampled_one() -> None:
    pool = PagePool(SHAPE, PAGES, 2)
    rows = RowTable(ROWS, MAX_PAGES, pool, HostDevice(), clears_pages=True)
    rows.lengths[:] = (3, 4, 0, 0)
    batch = Batch(
        1,
        ForwardMode.MIXED,
        extend_rows=(ExtendRow(2, 0, (7, 8), samples=False), ExtendRow(3, 0, (9, 9), samples=True)),
        verify_rows=(VerifyRow(1, 4, (5, 6, 7)),),
        decode_rows=(0,),
    )
    host = host_inputs(batch, rows)
    assert host.token_ids.tolist() == [7, 8, 9, 9, 5, 6, 7, 0]
    assert host.positions.tolist() == [0, 1, 0, 1, 4, 5, 6, 3]
    assert (host.extends, host.decodes) == (3, 1)
    assert host.sampled_tokens.tolist() == [3, 4, 5, 6, 7]
    assert host.sampling_rows == tuple(host.sampled_rows) == (3, 1, 1, 1, 0)
    assert host.sampled_contexts.tolist() == [2, 5, 6, 7, 4]


def test_a_page_that_memory_was_too_short_to_clear_is_cleared_the_next_time() -> None:
    pool, device = PagePool(SHAPE, PAGES, 2), ShortDevice()
    rows = RowTable(ROWS, MAX_PAGES, pool, device, clears_pages=True)
    pool.data.fill_(torch.nan)
    rows.apply(Batch(1, ForwardMode.IDLE, appended_pages=(PagesAppended(0, (3, 4)),)))
    device.short = True
    try:
        rows.send()
    except MemoryError:
        device.short = False
    rows.send()
    finite = pool.data.isfinite().flatten(1).all(1)
    assert finite.nonzero().flatten().tolist() == [4]
