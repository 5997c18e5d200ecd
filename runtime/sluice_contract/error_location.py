"""Where in a model a finding was made: the known keys there, and the bounds of its number.

Walks a model's fields along pydantic's location.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = type[BaseModel]
Location = Sequence[str | int]

UNTOLD: Final[dict[str, Any]] = {"x-untold": True}
"""Schema extra of a field that is read but not offered in messages."""
_BOUNDS: Final = ("gt", "ge", "lt", "le")


def known_keys(kind: Model, above: Location) -> list[str]:
    """The keys of the object at `above`, as spelled outside; for alternatives, all of them. Keys
    that users never write are left out."""
    models = [kind]
    for step in above:
        if fields := _fields(models, step):
            models = [model for field in fields for model in _models(field.annotation)]
        elif named := [model for model in models if model.__name__ == step]:
            models = named
    items = [item for model in models for item in _items(model)]
    documented = [item for item in items if item[1].json_schema_extra != UNTOLD]
    return sorted({_outside(*item) for item in documented})


def bounds_at(kind: Model, location: Location) -> dict[str, float]:
    """All bounds of the number at `location`: of `gt`, `ge`, `lt` and `le` those that it has."""
    models, last = [kind], list[FieldInfo]()
    for step in location:
        if fields := _fields(models, step):
            last = fields
            models = [model for field in fields for model in _models(field.annotation)]
    return {name: value for field in last for name, value in _bounds(field)}


def _fields(models: Sequence[Model], step: str | int) -> list[FieldInfo]:
    return [
        field for model in models for name, field in _items(model) if step in (name, field.alias)
    ]


def _items(model: Model) -> Iterator[tuple[str, FieldInfo]]:
    yield from model.model_fields.items()


def _outside(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _models(annotation: Any) -> Iterator[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _bounds(field: FieldInfo) -> Iterator[tuple[str, float]]:
    yield from _bounds_in(field.metadata)
    yield from _bounds_of(field.annotation)


def _bounds_of(annotation: Any) -> Iterator[tuple[str, float]]:
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        for mark in parts[1:]:
            yield from _bounds_in(mark.metadata if isinstance(mark, FieldInfo) else [mark])
        parts = parts[:1]
    for part in parts:
        yield from _bounds_of(part)


def _bounds_in(marks: Sequence[Any]) -> Iterator[tuple[str, float]]:
    for mark in marks:
        for name in _BOUNDS:
            if (value := getattr(mark, name, None)) is not None:
                yield name, value
