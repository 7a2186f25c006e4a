"""Tasks that a small file states: rows, how a row is asked and shown, how answers are scored. Pure.

rig.task_file reads such files; here they become samples.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.errors import BadParams
from evals.scorers import NUMBER_SCORERS
from evals.shapes import Draft, Sample

ANSWER = "answer"
"""The field of a row that holds its reference answer."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class Custom:
    """A task as its file has it. `ask` and `shot` are texts with a row's fields in braces.

    The first `shots` of `examples`, as `shot` shows them, stand before every question.
    """

    name: str
    version: str
    scorer: str
    rows: tuple[Row, ...]
    ask: str
    shot: str = ""
    examples: tuple[Row, ...] = ()
    shots: int = 0
    params: Mapping[str, Any] | None = None


def fields(template: str) -> list[str]:
    """The fields that a text has in braces. Raises ValueError for anything but plain names; braces double as `{{`."""
    found = []
    for _, name, form, conversion in string.Formatter().parse(template):
        if name is not None:
            if not name.isidentifier() or form or conversion:
                raise ValueError(f"`{{{name}}}` is not a field's name in braces; write {{{{ for a brace")
            found.append(name)
    return found


def custom(task: Custom, limit: int | None, shots: int | None) -> Draft:
    """The task's samples, the first `limit` of them, behind `shots` examples (None: the file's). Raises BadParams."""
    count = task.shots if shots is None else shots
    if count > len(task.examples):
        raise BadParams(f"{task.name}: {count} shots; the file has {len(task.examples)} examples")
    before = "".join(_filled(task.shot, row) for row in task.examples[:count])
    samples = tuple(
        Sample(f"{task.name}-{i:04d}", before + _filled(task.ask, row), row.get(ANSWER, ""))
        for i, row in enumerate(task.rows[:limit])
    )
    others: Sequence[str] = NUMBER_SCORERS if task.scorer in NUMBER_SCORERS else ()
    scorers = (task.scorer, *(name for name in others if name != task.scorer))
    return Draft(task.version, {"temperature": 0.0, **(task.params or {})}, scorers, samples)


def _filled(template: str, row: Row) -> str:
    return template.format_map(row)
