"""Which of two sides' labels differ, and whose come nearest; pure. Results are matched by labels, never by id."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rig.records import TaskInfo

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Difference:
    """A label that two sides have with different values; None where a side lacks it."""

    label: str
    candidate: Any
    baseline: Any


def differences(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The labels that differ, in the candidate's order. A label that is absent equals one that is None."""
    names = dict.fromkeys([*candidate, *baseline])
    return tuple(
        Difference(name, candidate.get(name), baseline.get(name))
        for name in names
        if _text(candidate.get(name)) != _text(baseline.get(name))
    )


def nearest(wanted: Mapping[str, Any], others: Mapping[K, Mapping[str, Any]]) -> K | None:
    """The one of `others` that differs in the fewest labels, the first of several; None where there are none."""
    return min(others, key=lambda name: len(differences(wanted, others[name])), default=None)


OBSERVING = frozenset({"return_token_ids", "logprobs"})
"""Request parameters that ask a server to tell more; they change how fast answers come, not which."""


def decoding_differences(candidate: TaskInfo, baseline: TaskInfo) -> tuple[Difference, ...]:
    """How the answers were to be made: endpoint and request parameters that differ, but for OBSERVING."""
    mine, theirs = ({"endpoint": t.endpoint, **t.params} for t in (candidate, baseline))
    return tuple(d for d in differences(mine, theirs) if d.label not in OBSERVING)


def task_differences(candidate: TaskInfo, baseline: TaskInfo) -> tuple[Difference, ...]:
    """All that makes two results of a task speak of different things; how many questions were asked does not."""
    names = ("name", "version", "score_reasoning", "scorer", "scorer_sha256")
    mine, theirs = ({f"task {name}": getattr(t, name) for name in names} for t in (candidate, baseline))
    if candidate.n == baseline.n:
        mine["prompt_sha256"], theirs["prompt_sha256"] = candidate.prompt_sha256, baseline.prompt_sha256
    return differences(mine, theirs) + decoding_differences(candidate, baseline)


def differ_text(found: Iterable[Difference]) -> str:
    """`async_scheduling (on here, off there), ...`."""
    return ", ".join(f"{d.label} ({_value(d.candidate)} here, {_value(d.baseline)} there)" for d in found)


def _value(value: object) -> str:
    return "none" if value is None else "on" if value is True else "off" if value is False else f"{value}"


def _text(value: Any) -> str:
    """As JSON, in which true is not 1 and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)
