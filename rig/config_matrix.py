"""From one `cell` with `matrix`, `include` and `exclude` to the complete cells of a sweep.

An axis is a dotted path into `cell` (`decode.tp`, `both.env.UCX_TLS`), or several separated by commas whose
values then change together (`model, decode.tp`: [[small, 1], [large, 4]]).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from rig.config_errors import config_error, did_you_mean, shown, validate
from rig.config_models import CellConfig, SweepFile
from rig.errors import ConfigError
from rig.routers import PDRIG
from rig.secrets import is_secret
from rig.yaml_source import KeyPath, YamlSource

CellPath = tuple[str, ...]

_NAMED_ENTRIES = ("args", "env")
_FREE_JSON = "kv_transfer_config"


@dataclass(frozen=True)
class Axis:
    """What varies together: `paths` into the cell and, for each value, what the file says for each path."""

    key: str
    paths: tuple[CellPath, ...]
    values: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class ExpandedCell:
    """One cell as written: `assigned` holds what an axis or an `include` entry set, `origins` where each stands."""

    data: dict[str, Any]
    assigned: dict[CellPath, Any]
    origins: dict[CellPath, KeyPath]
    included: bool = False


@dataclass(frozen=True)
class Cell:
    """One complete cell. `varied` names every path that differs between cells, with this cell's value."""

    settings: CellConfig
    assigned: dict[CellPath, Any]
    origins: dict[CellPath, KeyPath] = field(default_factory=dict)
    included: bool = False

    def at(self, path: KeyPath) -> KeyPath:
        """Where in the file `path` of this cell was written."""
        return _written_at(self.origins, path)


def _written_at(origins: dict[CellPath, KeyPath], path: KeyPath) -> KeyPath:
    for end in range(len(path), 0, -1):
        head = tuple(str(part) for part in path[:end])
        if head in origins:
            return origins[head]
    return ("cell", *path)


def cell_path(text: str) -> CellPath:
    """A dotted path as keys. Raises ValueError with the reason when `cell` has no such place."""
    parts = text.split(".")
    model: type[BaseModel] | None = CellConfig
    for i, part in enumerate(parts):
        if model is None:
            raise ValueError(f'"{".".join(parts[:i])}" has no keys below it')
        if part not in model.model_fields:
            raise ValueError(
                f'no "{part}" in {".".join(["cell", *parts[:i]])}' + did_you_mean(part, model.model_fields)
            )
        rest = parts[i + 1 :]
        if part in _NAMED_ENTRIES:
            if not rest:
                raise ValueError(f"name one entry, such as {text}.{'UCX_TLS' if part == 'env' else 'block-size'}")
            return (*parts[: i + 1], ".".join(rest))
        if part == _FREE_JSON:
            return tuple(parts)
        annotation = model.model_fields[part].annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    if model is not None:
        raise ValueError(f"name one key of it, such as {text}.{next(iter(model.model_fields))}")
    return tuple(parts)


def read_axes(sweep: SweepFile, source: YamlSource) -> tuple[Axis, ...]:
    """The axes of `matrix`. Raises ConfigError for an unknown path, an empty axis, or a path in two of them."""
    axes: list[Axis] = []
    seen: dict[CellPath, str] = {}
    for key, values in sweep.matrix.items():
        at: KeyPath = ("matrix", key)
        try:
            paths = tuple(cell_path(part.strip()) for part in key.split(","))
        except ValueError as error:
            raise config_error(source, at, f"unknown axis: {error}") from None
        for path in paths:
            if path in seen:
                raise config_error(source, at, f"{'.'.join(path)} is already set by {seen[path]}")
            seen[path] = f"matrix.{key}"
        if not values:
            raise config_error(source, at, "an empty list leaves no cell; give a value or drop the axis")
        rows: list[tuple[Any, ...]] = []
        for i, value in enumerate(values):
            if len(paths) == 1:
                rows.append((value,))
            elif isinstance(value, list) and len(value) == len(paths):
                rows.append(tuple(value))
            else:
                raise config_error(
                    source, (*at, i), f"expected a list of {len(paths)} values, one for each path, got {shown(value)}"
                )
        axes.append(Axis(key, paths, tuple(rows)))
    return tuple(axes)


def _leaves(data: dict[str, Any], at: KeyPath, source: YamlSource) -> Iterator[tuple[CellPath, Any, KeyPath]]:
    """The paths that an `include` entry sets: nested or dotted keys; kv_transfer_config is replaced whole."""

    def walk(value: dict[str, Any], prefix: str, where: KeyPath) -> Iterator[tuple[CellPath, Any, KeyPath]]:
        for key, child in value.items():
            text, here = f"{prefix}{key}", (*where, key)
            try:
                path = cell_path(text)
            except ValueError as error:
                if not isinstance(child, dict) or not child:
                    raise config_error(source, here, f"unknown key: {error}") from None
                yield from walk(child, f"{text}.", here)
            else:
                yield path, child, here

    yield from walk(data, "", at)


def _assign(data: dict[str, Any], path: CellPath, value: Any, at: KeyPath, source: YamlSource) -> None:
    here = data
    for part in path[:-1]:
        below = here.get(part)
        if below is None:
            below = here[part] = {}
        if not isinstance(below, dict):
            raise config_error(source, at, f"{'.'.join(path)} cannot be set: {part} is {shown(below)}")
        here = below
    here[path[-1]] = copy.deepcopy(value)


def expand(sweep: SweepFile, axes: tuple[Axis, ...], source: YamlSource) -> list[ExpandedCell]:
    """Every cell as written, before `exclude`: the matrix in its order, the last axis fastest, then `include`.

    Without axes the base cell stands alone, unless `include` lists the cells.
    """
    cells: list[ExpandedCell] = []
    if axes or not sweep.include:
        for rows in itertools.product(*(range(len(axis.values)) for axis in axes)):
            cells.append(_matrix_cell(sweep, axes, rows, source))
    for i, entry in enumerate(sweep.include):
        if not entry:
            raise config_error(source, ("include", i), "an empty entry; say what differs from `cell`")
        data = copy.deepcopy(sweep.cell)
        assigned: dict[CellPath, Any] = {}
        origins: dict[CellPath, KeyPath] = {}
        for path, value, at in _leaves(entry, ("include", i), source):
            if path in assigned:
                raise config_error(source, at, f"{'.'.join(path)} is set twice in this entry")
            _assign(data, path, value, at, source)
            assigned[path], origins[path] = value, at
        cells.append(ExpandedCell(data, assigned, origins, included=True))
    return cells


def _matrix_cell(sweep: SweepFile, axes: tuple[Axis, ...], rows: tuple[int, ...], source: YamlSource) -> ExpandedCell:
    data = copy.deepcopy(sweep.cell)
    assigned: dict[CellPath, Any] = {}
    origins: dict[CellPath, KeyPath] = {}
    for axis, row in zip(axes, rows, strict=True):
        for column, path in enumerate(axis.paths):
            at: KeyPath = ("matrix", axis.key, row) if len(axis.paths) == 1 else ("matrix", axis.key, row, column)
            _assign(data, path, axis.values[row][column], at, source)
            assigned[path], origins[path] = axis.values[row][column], at
    return ExpandedCell(data, assigned, origins)


def complete(cell: ExpandedCell, sweep: SweepFile, source: YamlSource) -> Cell:
    """The cell as a model, its names looked up. Raises ConfigError where the file wrote what is wrong."""
    for path, at in cell.origins.items():
        if len(path) == 3 and path[1] == "env" and is_secret(path[2]):
            raise config_error(source, at, "labels are stored, so a secret cannot be an axis; set it in `cell`")
    settings = validate(CellConfig, cell.data, source, lambda path: _written_at(cell.origins, path))
    names: list[tuple[KeyPath, str | None, dict[str, Any], str]] = [
        (("model",), settings.model, dict(sweep.models), "model"),
        (("engine",), settings.engine, dict(sweep.engines), "engine"),
        (("task",), settings.task, dict(sweep.tasks), "task"),
        (("router",), settings.router, {PDRIG: None, **sweep.routers}, "router"),
    ]
    for role, part in (("both", settings.both), ("prefill", settings.prefill), ("decode", settings.decode)):
        names.append(((role, "host"), part.host, dict(sweep.hosts), "host"))
    for at_cell, name, known, kind in names:
        if name is not None and name not in known:
            raise unknown_name(source, _written_at(cell.origins, at_cell), kind, name, known)
    return Cell(settings, cell.assigned, cell.origins, cell.included)


def unknown_name(source: YamlSource, at: KeyPath, kind: str, name: str, known: dict[str, Any]) -> ConfigError:
    return config_error(source, at, f'no {kind} "{name}" under {kind}s' + did_you_mean(name, known))
