"""Adapters of one rank: which row has which, and which are in the device's slots.

A loaded adapter stays in host memory, and is copied into a slot of the device when a row in a step
has it. It replaces the least recently used adapter that the step does not need; the scheduler makes
sure that there is one. A rank other than the first may not have read an adapter yet when a row
first has it; it then reads the adapter within the step. Knows no layer and no file format.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np

from sluice_runtime.engine.device import Device
from sluice_runtime.layers.adapters import NO_SLOT, AdapterBank
from sluice_runtime.layers.attention import RowNumbers
from sluice_runtime.model.adapters import Adapter, read_adapter
from sluice_runtime.model.shard import Shard
from sluice_runtime.scheduler.batch import Batch


class AdapterTable:
    """One rank's adapters, by key."""

    def __init__(
        self, bank: AdapterBank, shard: Shard, inner: int, rows: int, device: Device
    ) -> None:
        """`inner`: see `read_adapter`."""
        self._bank = bank
        self._shard = shard
        self._inner = inner
        self._device = device
        self._loaded: dict[str, Adapter] = {}
        """Adapters in the host's memory, by key, until they are forgotten."""
        self._rows: list[str] = [""] * rows
        """Key of each row's adapter; empty: none."""
        self._folders: dict[str, Path] = {}
        """Folders of the adapters that rows have, by key."""
        self._slots: OrderedDict[str, int] = OrderedDict()
        """Slots by key, least recently used first."""

    def read(self, folder: Path) -> Adapter:
        """Reads this rank's part of an adapter; may be called in any thread.

        Raises:
            ModelLoadError: the adapter cannot be used; one line that says why.
        """
        return read_adapter(folder, self._bank, self._shard, self._inner)

    def add(self, key: str, adapter: Adapter) -> None:
        """Adds an adapter, which rows may have from now on."""
        self._loaded[key] = adapter

    def forget(self, key: str) -> None:
        """Removes an adapter that no row has or will have."""
        del self._loaded[key]

    def has_row_of(self, key: str) -> bool:
        """Whether a row has this adapter."""
        return key in self._rows

    def apply(self, batch: Batch) -> None:
        """Applies the batch's dropped and added rows."""
        for row in batch.dropped_rows:
            self._rows[row] = ""
        for added in batch.added_rows:
            self._rows[added.row] = added.adapter
            self._folders[added.adapter] = Path(added.adapter_folder)

    def use(self, rows: RowNumbers) -> None:
        """Prepares the bank, so that the next forward pass over these rows adds to each token what
        its row's adapter adds."""
        keys = [self._rows[row] for row in rows.rows]
        in_step = dict.fromkeys(filter(None, keys))
        if not in_step:
            self._bank.use_none(int(rows.begins[-1]))
            return
        for key in in_step:
            if key in self._slots:
                self._slots.move_to_end(key)
        for key in in_step:
            if key not in self._slots:
                self._take_slot(key, len(in_step))
        by_row = np.array([self._slots[key] if key else NO_SLOT for key in keys], np.int64)
        (slots,) = self._device.upload((by_row.repeat(np.diff(rows.begins)),))
        self._bank.use(slots, 1 + max(self._slots[key] for key in in_step))

    def _take_slot(self, key: str, in_step: int) -> None:
        assert in_step <= self._bank.shape.slots, f"{in_step} adapters in one step"
        adapter = self._loaded.get(key) or self.read(self._folders[key])
        if len(self._slots) < self._bank.shape.slots:
            slot = len(self._slots)
        else:
            _, slot = self._slots.popitem(last=False)
        self._bank.place(slot, adapter.pairs)
        self._slots[key] = slot
