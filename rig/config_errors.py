"""What pydantic found wrong, as one line that names file, key, what was expected, what was there, and the line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rig.errors import ConfigError
from rig.yaml_source import KeyPath, YamlSource, dotted

PROBLEM = "pdrig"
"""Type of the errors that the models raise themselves; their message is shown as it is."""

_MAX_SHOWN = 60

M = TypeVar("M", bound=BaseModel)


def shown(value: Any) -> str:
    """A value as it is quoted in a message: JSON, cut when long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` where something near is known, else what is known."""
    choices = list(known)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; known: {', '.join(choices)}" if choices else "; none is defined"


def config_error(source: YamlSource, path: KeyPath, problem: str, line_of: KeyPath | None = None) -> ConfigError:
    """An error at `path`, with the line of `line_of` (default: of `path`) where the file has one."""
    line = source.line(path if line_of is None else line_of)
    return ConfigError(source.file, dotted(path), problem if line is None else f"{problem} (line {line})")


def validate(model: type[M], data: Any, source: YamlSource, at: Callable[[KeyPath], KeyPath] = lambda path: path) -> M:
    """`model` from plain data. `at` says where in the file a path within the data was written.

    Raises ConfigError for the first problem; unknown keys come first, since they cause others.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = _within(data, first["loc"])
    raise config_error(source, at(path), _problem(model, first, path)) from None


def _within(data: Any, loc: tuple[int | str, ...]) -> KeyPath:
    """pydantic's location without what it adds: `[key]`, and indexes where the file has no list."""
    path: list[int | str] = []
    here = data
    for part in loc:
        if part == "[key]" or (isinstance(part, int) and not isinstance(here, list)):
            continue
        path.append(part)
        if isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        elif isinstance(here, Mapping):
            here = here.get(part)
    return tuple(path)


def _walk(model: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model that holds the last key of `path`, and that key's field; names of entries are stepped over."""
    here: type[BaseModel] | None = model
    info: FieldInfo | None = None
    for part in path[:-1]:
        if here is None or isinstance(part, int) or part not in here.model_fields:
            continue
        found = _models_in(here.model_fields[part].annotation)
        here = found[0] if found else None
    if here is not None and path and isinstance(path[-1], str):
        info = here.model_fields.get(path[-1])
    return here, info


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models_in(arg)]


def _bounds(info: FieldInfo | None) -> str:
    """` of at least 1`, ` from 1 to 65535`, or nothing, from the constraints of a number's field."""
    if info is None:
        return ""
    low, high, above = (_constraint(info, name) for name in ("ge", "le", "gt"))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if above is not None:
        return f" above {above:g}" + (f" and below {below:g}" if (below := _constraint(info, "lt")) is not None else "")
    return f" of at least {low:g}" if low is not None else ""


def _constraint(info: FieldInfo, name: str) -> float | None:
    queue: list[Any] = [*info.metadata, info.annotation]
    while queue:
        item = queue.pop()
        value = getattr(item, name, None)
        if isinstance(value, int | float):
            return value
        queue += [*getattr(item, "__metadata__", ()), *getattr(item, "__args__", ())]
        queue += item.metadata if isinstance(item, FieldInfo) else []
    return None


_NUMBER = {"int_type", "int_from_float", "int_parsing", "float_type", "float_parsing", "finite_number"}
_BOUND = {"greater_than_equal", "less_than_equal", "greater_than", "less_than"}
_EXPECTED = {
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "`key: value` lines",
    "model_type": "`key: value` lines",
    "model_attributes_type": "`key: value` lines",
}


def _problem(model: type[BaseModel], error: ErrorDetails, path: KeyPath) -> str:
    kind, context, got = error["type"], error.get("ctx", {}), shown(error.get("input"))
    holder, info = _walk(model, path)
    if kind == PROBLEM:
        return error["msg"]
    if kind == "extra_forbidden":
        return "unknown key" + did_you_mean(str(path[-1]), holder.model_fields if holder else ())
    if kind == "missing":
        return "is required"
    if kind in _NUMBER or kind in _BOUND:
        whole = kind.startswith("int") or (kind in _BOUND and info is not None and "int" in str(info.annotation))
        return f"expected a {'whole ' if whole else ''}number{_bounds(info)}, got {got}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {got}"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {got}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {got}"
