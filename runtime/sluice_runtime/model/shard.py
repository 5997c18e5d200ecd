"""The part of each tensor that a rank of a tensor-parallel engine holds.

Parts are in rank order, so that joining all ranks' parts along the split dimension gives the whole.
Parts have equal lengths, with two exceptions. The last one may be shorter or empty if the dimension
does not divide evenly (a vocabulary). In a feed-forward part the first ones may have a unit more.
If there are more ranks than key heads, neighbouring ranks hold copies of one: the head of their
query heads. Knows only numbers, no tensors or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Shape = tuple[int, ...]


class Split(Enum):
    """Division of a tensor among ranks."""

    NONE = "none"
    """Every rank has all of it."""
    ROWS = "rows"
    """Outputs of a matrix [out, in] are divided."""
    KEYS = "keys"
    """Outputs that are key heads, or value heads, are divided."""
    COLUMNS = "columns"
    """Inputs of a matrix [out, in] are divided, so that the ranks' products must be summed."""
    GATED = "gated"
    """Outputs that are inner values of a feed-forward part are divided in whole units."""
    DOWN = "down"
    """Inputs that are inner values of a feed-forward part are divided likewise."""

    @property
    def is_by_inputs(self) -> bool:
        return self in (Split.COLUMNS, Split.DOWN)

    @property
    def is_inner(self) -> bool:
        return self in (Split.GATED, Split.DOWN)


@dataclass(frozen=True)
class TensorPart:
    """Range [begin, begin + length) along dimension `dim` of a tensor of shape `whole`."""

    whole: Shape
    dim: int
    begin: int
    length: int

    @property
    def shape(self) -> Shape:
        return (*self.whole[: self.dim], self.length, *self.whole[self.dim + 1 :])


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size`; the default is an engine on one device."""

    rank: int = 0
    size: int = 1
    key_copies: int = 1
    """Number of ranks that hold each key head."""
    unit: int = 1
    """Inner values of a feed-forward part that one rank holds together: those of a packed group."""

    def parts(self, split: Split) -> int:
        """Number of different parts of a tensor."""
        if split is Split.NONE:
            return 1
        return self.size // self.key_copies if split is Split.KEYS else self.size

    def part(self, whole: Shape, split: Split) -> TensorPart:
        """The part of a tensor that this rank holds."""
        if split is Split.NONE:
            return TensorPart(whole, 0, 0, whole[0])
        if split is Split.KEYS:
            heads = Shard(self.rank // self.key_copies, self.parts(split))
            return heads.part(whole, Split.ROWS)
        dim = int(split.is_by_inputs)
        if split.is_inner:
            return self.inner(whole, dim)
        size = -(-whole[dim] // self.size)
        begin = min(self.rank * size, whole[dim])
        return TensorPart(whole, dim, begin, min(size, whole[dim] - begin))

    def inner(self, whole: Shape, dim: int, outputs: int = 1) -> TensorPart:
        """This rank's part of a tensor that has `outputs` numbers along `dim` for each inner value
        of a feed-forward part."""
        unit = self.unit * outputs
        units, more = divmod(-(-whole[dim] // unit), self.size)
        begin = (self.rank * units + min(self.rank, more)) * unit
        length = (units + (self.rank < more)) * unit
        return TensorPart(whole, dim, begin, min(length, whole[dim] - begin))
