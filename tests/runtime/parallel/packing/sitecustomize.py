"""Ranks of processes that have this folder on their path keep weights packed, as on a GPU."""

from __future__ import annotations

import sys

import pytest

if "sluice_runtime.engine.rank" in sys.orig_argv:
    from sluice_runtime.model import layer_tensors

    pytest.MonkeyPatch().setattr(layer_tensors, "can_pack", lambda device: True)
