"""All listed lines."""

from __future__ import annotations

from typing import Final

from tests.mutation.cache import CACHE_MUTATIONS
from tests.mutation.others import OTHERS
from tests.mutation.steps import STEP_MUTATIONS

EVERY: Final = (*STEP_MUTATIONS, *CACHE_MUTATIONS, *OTHERS)
