"""Options and environment variables: levels merged, values written as argv. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rig.config_types import Args, Env, canonical


def compact_json(value: Any) -> str:
    """JSON without spaces, keys in their order: one argv element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def merge_args(*levels: Args) -> dict[str, Any]:
    """Later levels override and keep the place of what they override; None drops an inherited option."""
    merged: dict[str, Any] = {}
    for level in levels:
        for raw_name, raw_value in level.items():
            name, value = canonical(raw_name, raw_value)
            merged[name] = value
    return {name: value for name, value in merged.items() if value is not None}


def merge_env(*levels: Env) -> dict[str, str]:
    """Later levels override; None drops what an earlier level set."""
    merged: dict[str, str | None] = {}
    for level in levels:
        merged.update(level)
    return {name: value for name, value in merged.items() if value is not None}


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return compact_json(value)


def render_args(args: Mapping[str, Any]) -> list[str]:
    """`--name value`; true and false as `--name` and `--no-name`; a list as several values; the rest as JSON."""
    words: list[str] = []
    for name, value in args.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(_word, value)]
        elif (word := _word(value)).startswith("-"):
            # argparse would take such a value for an option of its own.
            words.append(f"--{name}={word}")
        else:
            words += [f"--{name}", word]
    return words


def flag(name: str, on: bool) -> str:
    return f"--{name}" if on else f"--no-{name}"


def whole_number(args: Mapping[str, Any], *names: str) -> int:
    """The first of these options that is given, as a number of at least 1; 1 where none is.

    Raises ValueError naming the option whose value is no such number.
    """
    for name in names:
        value = args.get(name)
        if value is None:
            continue
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if isinstance(value, bool) or number < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {compact_json(value)}")
        return number
    return 1
