"""Whether an axis changes anything. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rig.config import Config
from rig.config_errors import shown
from rig.config_matrix import Axis, Cell
from rig.plan_args import compact_json


def check_axes(config: Config, cells: Sequence[tuple[Cell, str]]) -> None:
    """Each cell comes with all that it would do, as text. Raises ConfigError for an axis that changes nothing.

    Cells that differ in one axis alone are compared. An axis with one value, or whose other values `exclude`
    took away, cannot be judged and is let through.
    """
    matrix = [(cell, done) for cell, done in cells if not cell.included]
    for axis in config.axes:
        groups: dict[str, dict[str, str]] = {}
        for cell, done in matrix:
            others = [[".".join(p), v] for p, v in cell.assigned.items() if p not in axis.paths]
            groups.setdefault(compact_json(others), {})[_value(axis, cell)] = done
        _check(config, axis, list(groups.values()))


def _value(axis: Axis, cell: Cell) -> str:
    values = [cell.assigned[path] for path in axis.paths]
    return shown(values[0] if len(values) == 1 else values)


def _check(config: Config, axis: Axis, groups: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(name for group in groups for name in group))
    differing = False
    same: list[tuple[str, str]] = []
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            both = [group for group in groups if one in group and other in group]
            if any(group[one] != group[other] for group in both):
                differing = True
            elif both:
                same.append((one, other))
    if same and not differing:
        raise config.error(("matrix", axis.key), "no command uses this axis: its values change nothing; drop it")
    if same:
        one, other = same[0]
        raise config.error(("matrix", axis.key), f"{one} and {other} give the same commands; drop one of them")
