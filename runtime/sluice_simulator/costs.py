"""Computes how long a step takes on a device: one formula, with coefficients from a file or a
preset.

    seconds = step + max(weights, prompt tokens x token + decode rows x row)
              + products x product + decode context x context

`weights` is the least time that reading the weights takes, however few tokens there are. With 0
this is the formula that the engine fits to its own steps. A file also says where its figures come
from, and for which device and pool they hold.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError
from sluice_contract.base import ContractModel, config_error_from
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.scheduler.batch import StepShape

from sluice_simulator.errors import CostError, UnusableFileError

PRESETS: Final = resources.files("sluice_simulator") / "presets"


class Coefficients(ContractModel):
    """Coefficients of the formula in seconds; all at least 0."""

    step: float = Field(ge=0, description="Every step, whatever is in it.")
    weights: float = Field(default=0.0, ge=0, description="Reading the weights once.")
    token: float = Field(ge=0, description="Each prompt token.")
    row: float = Field(ge=0, description="Each decode row, without what it attends to.")
    product: float = Field(ge=0, description="Each pair of a prompt token and one it attends to.")
    context: float = Field(ge=0, description="Each token that a decode row attends to.")
    host: float = Field(
        default=0.0, ge=0, description="CPU time between two steps; hidden by an overlapped loop."
    )


class Cost(ContractModel):
    """A device with a model on it."""

    name: str = Field(min_length=1)
    source: str = Field(min_length=1, description="Where the coefficients come from.")
    accelerator: Accelerator = Accelerator()
    context_length: int = Field(ge=1, description="The model's, in tokens.")
    kv_pool_tokens: int = Field(ge=1, description="Pool that is left beside the weights.")
    layers: int = Field(
        default=1, ge=1, description="The model's; 1: no chunk is split in groups of these."
    )
    coefficients: Coefficients

    def seconds(self, shape: StepShape) -> float:
        """Time of the device for a step of this shape."""
        c = self.coefficients
        return (
            c.step * shape.passes
            + self._of_tokens(shape)
            + shape.extend_context_products * c.product
            + shape.decode_context_tokens * c.context
        )

    def _of_tokens(self, shape: StepShape) -> float:
        """Seconds for reading the weights as often as the step reads them or, if longer, for the
        tokens' products with them."""
        c = self.coefficients
        tokens, rows = shape.extend_tokens * c.token, shape.decode_rows * c.row
        if shape.passes == 1:
            return max(c.weights, tokens + rows)
        passes = bool(shape.decode_rows)
        group = max(c.weights * (shape.passes - passes), tokens)
        return max(c.weights * passes, rows) + group


def preset_names() -> list[str]:
    """Names that `cost_named` knows without a file."""
    return sorted(entry.name.removesuffix(".json") for entry in PRESETS.iterdir())


def cost_named(name: str) -> Cost:
    """The cost model of a preset, or of the JSON file with that name.

    Raises:
        UnusableFileError: the name is neither a preset's nor a readable file's.
        CostError: a key that is missing, unknown, or out of range.
    """
    if name in preset_names():
        return _parsed(name, (PRESETS / f"{name}.json").read_bytes())
    try:
        return _parsed(name, Path(name).read_bytes())
    except OSError as error:
        presets = ", ".join(preset_names())
        allowed = f"a preset ({presets}) or a readable file ({error.strerror})"
        raise UnusableFileError(f"--cost: {name!r} is not allowed; allowed: {allowed}") from None


def _parsed(name: str, text: bytes) -> Cost:
    try:
        return Cost.model_validate_json(text)
    except ValidationError as error:
        raise CostError(f"{name}: {config_error_from(error, Cost)}") from None
