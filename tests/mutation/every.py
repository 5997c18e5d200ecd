"""All listed lines."""

from __future__ import annotations

from typing import Final

from tests.mutation.autoscaler import AUTOSCALER_MUTATIONS
from tests.mutation.cache import CACHE_MUTATIONS
from tests.mutation.canary import CANARY_MUTATIONS
from tests.mutation.handover import HANDOVER_MUTATIONS
from tests.mutation.operator_plans import OPERATOR_MUTATIONS
from tests.mutation.others import OTHERS
from tests.mutation.router import ROUTER_MUTATIONS
from tests.mutation.speculation import SPECULATION_MUTATIONS
from tests.mutation.steps import STEP_MUTATIONS

EVERY: Final = (
    *STEP_MUTATIONS,
    *SPECULATION_MUTATIONS,
    *CACHE_MUTATIONS,
    *OTHERS,
    *ROUTER_MUTATIONS,
    *AUTOSCALER_MUTATIONS,
    *OPERATOR_MUTATIONS,
    *CANARY_MUTATIONS,
    *HANDOVER_MUTATIONS,
)
