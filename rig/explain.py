"""Why these cells: what the red cells of a sweep have in common and no green one has; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rig.labels import label_text
from rig.records import CellResult

MOST_LABELS = 3
"""A combination of more labels than this explains nothing to anybody."""

MOST_COMBINATIONS_NAMED = 3
"""So many equally good combinations are named; of more it is said that they cannot be told apart."""


@dataclass(frozen=True)
class Explanation:
    """What a sweep says about where a fault comes from; `text` says the same in words.

    `shared` is the smallest combination of labels that every red cell has and no green one: a value, or a text such as
    `16 or more`; empty where there is none, or too many. `irrelevant` are the labels that do not matter. `pair` is the
    red and the green cell that differ in the fewest labels, with those labels: the green cell's value and the red's.
    """

    shared: dict[str, Any]
    irrelevant: tuple[str, ...]
    pair: tuple[str, str, dict[str, tuple[Any, Any]]] | None
    text: str


@dataclass(frozen=True)
class _Condition:
    """Something that all red cells have: a value of one label, or a bound of it."""

    name: str
    value: Any
    greens: frozenset[int]  # those that have it too, by position

    @property
    def words(self) -> str:
        return f"no {self.name}" if self.value is None else f"{self.name} {label_text(self.value)}"


def explain(results: Sequence[CellResult]) -> Explanation | None:
    """What tells the red cells from the green ones; None where no cell is red, or the only one that was judged is.

    Red are regressions, expected ones too; green are cells that passed. Baselines, reruns and cells that could not be
    judged are neither.
    """
    red, green = [r for r in results if is_red(r)], [r for r in results if is_green(r)]
    if not red or (not green and len(red) == 1):
        return None
    if not green:
        text = f"All {len(red)} cells that could be judged are red: no label tells them from sound ones."
        return Explanation({}, (), None, text)
    names = list(dict.fromkeys(name for result in [*red, *green] for name in result.labels))
    found = _combinations(names, red, green)
    named = {condition.name for combination in found for condition in combination}
    irrelevant = tuple(n for n in names if n not in named and _does_not_matter(n, red, green)) if found else ()
    pair = _closest(names, red, green, named)
    shared = {c.name: c.value for c in found[0]} if 0 < len(found) <= MOST_COMBINATIONS_NAMED else {}
    said = [_what(found, len(red)), _irrelevant(irrelevant), _step(pair)]
    return Explanation(shared, irrelevant, pair, " ".join(sentence for sentence in said if sentence))


def sound_beside(cell: CellResult, results: Sequence[CellResult]) -> dict[str, list[Any]]:
    """Values of one label with which there is a sound cell that shares all other labels with this one, by label."""
    found: dict[str, list[Any]] = {}
    for green in filter(is_green, results):
        names = dict.fromkeys([*cell.labels, *green.labels])
        different = [n for n in names if _key(cell.labels.get(n)) != _key(green.labels.get(n))]
        if len(different) == 1:
            found.setdefault(different[0], []).append(green.labels.get(different[0]))
    return found


def is_red(result: CellResult) -> bool:
    """Whether a cell got worse, as was expected or not. An expected failure to come up is not that."""
    state = _state(result)
    return state == "regression" or (state == "xfail" and result.status != "failed")


def is_green(result: CellResult) -> bool:
    """Whether a cell was shown to be sound, as was expected or not."""
    return _state(result) in ("pass", "improved", "xpass")


def _state(result: CellResult) -> str | None:
    if result.verdict is None or result.kind == "monolithic" or result.rerun_of is not None:
        return None
    return result.verdict.state


# What separates


def _combinations(
    names: Sequence[str], red: Sequence[CellResult], green: Sequence[CellResult]
) -> list[tuple[_Condition, ...]]:
    """All the smallest combinations that separate; single values are preferred to bounds of the same number."""
    values = [c for n in names if (c := _same_value(n, red, green)) is not None]
    bounds = [c for n in names for c in _bounds(n, red, green)]
    # What all cells have tells none apart.
    values, bounds = ([c for c in group if len(c.greens) < len(green)] for group in (values, bounds))
    for size in range(1, MOST_LABELS + 1):
        for conditions in (values, [*values, *bounds]):
            found = [
                combination
                for combination in combinations(conditions, size)
                if not frozenset.intersection(*(c.greens for c in combination))
            ]
            if found:
                return found
    return []


def _same_value(name: str, red: Sequence[CellResult], green: Sequence[CellResult]) -> _Condition | None:
    """The value that all red cells share; None where they have several."""
    if len(_seen(name, red)) > 1:
        return None
    value = red[0].labels.get(name)
    return _condition(name, value, green, lambda v: _key(v) == _key(value))


def _bounds(name: str, red: Sequence[CellResult], green: Sequence[CellResult]) -> Iterable[_Condition]:
    """From the smallest value of the red cells up, and from the largest down, where it is a number that varies."""
    values: list[Any] = [r.labels.get(name) for r in red]
    if len(_seen(name, red)) < 2 or not all(_is_number(r.labels.get(name)) for r in [*red, *green]):
        return
    low, high = min(values), max(values)
    yield _condition(name, f"{low} or more", green, lambda v: v >= low)
    yield _condition(name, f"{high} or less", green, lambda v: v <= high)


def _condition(name: str, value: Any, green: Sequence[CellResult], holds: Callable[[Any], bool]) -> _Condition:
    return _Condition(name, value, frozenset(i for i, g in enumerate(green) if holds(g.labels.get(name))))


def _does_not_matter(name: str, red: Sequence[CellResult], green: Sequence[CellResult]) -> bool:
    """Whether red cells have several values of it, and green ones no other: one that only green have may matter."""
    return len(_seen(name, red)) > 1 and _seen(name, green) <= _seen(name, red)


def _closest(
    names: Sequence[str], red: Sequence[CellResult], green: Sequence[CellResult], named: set[str]
) -> tuple[str, str, dict[str, tuple[Any, Any]]]:
    """The red and the green cell that differ in the fewest labels; of several, in the fewest that explain nothing."""

    def differing(r: CellResult, g: CellResult) -> list[str]:
        return [n for n in names if _key(r.labels.get(n)) != _key(g.labels.get(n))]

    def distance(both: tuple[CellResult, CellResult]) -> tuple[int, int]:
        found = differing(*both)
        return len(found), sum(n not in named for n in found)

    r, g = min(((r, g) for r in red for g in green), key=distance)
    return r.cell_id, g.cell_id, {n: (g.labels.get(n), r.labels.get(n)) for n in differing(r, g)}


def _seen(name: str, cells: Iterable[CellResult]) -> set[str]:
    return {_key(cell.labels.get(name)) for cell in cells}


def _key(value: Any) -> str:
    """A label's value to be compared: as JSON, in which true is not 1."""
    return json.dumps(value, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# In words


def _what(found: Sequence[Sequence[_Condition]], reds: int) -> str:
    who = "The red cell has" if reds == 1 else "Both red cells have" if reds == 2 else f"All {reds} red cells have"
    if not found:
        return f"No combination of up to {MOST_LABELS} labels is in every red cell and in no green one."
    size = len(found[0])
    if len(found) > MOST_COMBINATIONS_NAMED:
        which = "" if size > 1 else f" ({_listed([c.words for (c,) in found], 'and')})"
        kind = "labels" if size == 1 else f"combinations of {size} labels"
        return f"{who} {len(found)} {kind}{which} that no green cell has: these cells cannot tell them apart."
    alternatives = [_listed([c.words for c in combination], "and") for combination in found]
    has = {1: "has", 2: "has both", 3: "has all three"}[size]
    if len(found) == 1:
        return f"{who} {alternatives[0]}; no green cell {has}."
    joint = " or " if size == 1 else ", or "
    return f"{who} {joint.join(alternatives)}; no green cell {has}. These cells cannot tell which of them it is."


def _irrelevant(names: Sequence[str]) -> str:
    return f"{_listed(names, 'and')} {'does' if len(names) == 1 else 'do'} not matter." if names else ""


def _step(pair: tuple[str, str, dict[str, tuple[Any, Any]]]) -> str:
    red, green, labels = pair
    if not labels:
        return f"{green} is green and {red} is red with the same labels: the fault comes and goes."
    steps = [f"{name} {label_text(old)} -> {label_text(new)}" for name, (old, new) in labels.items()]
    return f"Smallest step from green to red: {green} -> {red}, {_listed(steps, 'and')}."


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
