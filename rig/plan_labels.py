"""Labels and ids of cells, and what matches them. Pure.

Labels say everything that tells one cell from another; results are matched by them. The id is a readable
short form with a hash of all labels: it does not depend on the order in which anything was written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rig.config import Config
from rig.config_errors import did_you_mean, shown
from rig.config_matrix import Cell, CellPath, cell_path
from rig.config_types import canonical
from rig.plan_args import compact_json
from rig.plan_tasks import load_of, schedule_text
from rig.yaml_source import KeyPath

Labels = dict[str, Any]

STANDARD: dict[CellPath, str] = {
    ("model",): "model",
    ("engine",): "engine",
    ("prefill", "tp"): "prefill_tp",
    ("decode", "tp"): "decode_tp",
    ("prefill", "instances"): "prefill_instances",
    ("decode", "instances"): "decode_instances",
    ("async_scheduling",): "async_scheduling",
    ("kv_transfer_config", "kv_connector"): "connector",
    ("task",): "task",
    ("concurrency",): "concurrency",
    ("schedule",): "schedule",
}
"""The labels that every cell has, by the path they come from; every other axis is a label by its own path."""

PASS = "pass"
"""The label that tells passes over the same questions apart: 1, 2 and so on; None where there is one."""

OF_THE_TASK = ("task", "concurrency", "schedule", PASS)
"""Labels that change what is asked, not what is running."""

_IN_EVERY_ID = {"model", "prefill_tp", "decode_tp", "prefill_instances", "decode_instances", "async_scheduling"}
_MAX_PART = 32


def label_name(path: CellPath) -> str:
    return STANDARD.get(path, ".".join(path))


def extra_axes(cells: Iterable[Cell]) -> tuple[CellPath, ...]:
    """Every path that some cell sets and that is no standard label, sorted."""
    return tuple(sorted({path for cell in cells for path in cell.assigned} - set(STANDARD)))


def value_at(settings: Mapping[str, Any], path: CellPath) -> Any:
    """The value of dumped settings at a path, None where nothing is; lists and objects as JSON text."""
    here: Any = settings
    for part in path:
        if not isinstance(here, Mapping):
            return None
        if part not in here and len(path) == 3 and path[1] == "args":
            here = next((v for k, v in here.items() if canonical(k, v)[0] == canonical(part, v)[0]), None)
        else:
            here = here.get(part)
    return compact_json(here) if isinstance(here, dict | list) else here


def pd_labels(config: Config, cell: Cell, extras: Sequence[CellPath]) -> Labels:
    """All labels of a cell. Every cell of a sweep has the same names, so that a difference is always visible."""
    settings = cell.settings
    attach = config.sweep.attach
    concurrency, schedule = load_of(settings, config.sweep.tasks[settings.task])
    labels: Labels = {
        "model": settings.model,
        "engine": settings.engine,
        "prefill_tp": settings.prefill.tp,
        "decode_tp": settings.decode.tp,
        "prefill_instances": len(attach.prefill) if attach else settings.prefill.instances,
        "decode_instances": len(attach.decode) if attach else settings.decode.instances,
        "async_scheduling": settings.async_scheduling,
        "connector": settings.kv_transfer_config.kv_connector,
        "task": settings.task,
        "concurrency": concurrency,
        "schedule": None if schedule is None else schedule_text(schedule),
        PASS: None,
    }
    dumped = settings.model_dump()
    return {**labels, **{label_name(path): value_at(dumped, path) for path in extras}}


def with_passes(config: Config, labels: Labels) -> list[Labels]:
    """The labels of each pass that the cell's task asks for; as they are where there is one."""
    passes = config.sweep.tasks[labels["task"]].passes
    return [labels] if passes == 1 else [{**labels, PASS: number} for number in range(1, passes + 1)]


def names_that_vary(labels: Sequence[Labels]) -> tuple[str, ...]:
    """Label names with more than one value, in the order in which ids show them."""
    order = [*STANDARD.values(), PASS]
    names = sorted(labels[0], key=lambda n: (order.index(n) if n in order else len(order), n)) if labels else []
    return tuple(n for n in names if len({compact_json(one[n]) for one in labels}) > 1)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:_MAX_PART].strip("-.")


def _part(name: str, value: Any) -> str:
    if name in ("engine", "connector", "task", "router"):
        return _slug(str(value))
    if name == "concurrency":
        return f"c{value}"
    shown_value = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return f"{_slug(name.split('.')[-1])}-{_slug(shown_value)}".strip("-")


def readable(kind: str, labels: Labels, varying: Iterable[str]) -> str:
    """The readable half of an id: model, shape, TP, async, then what else varies in this sweep."""
    on = "on" if labels["async_scheduling"] else "off"
    if kind == "monolithic":
        head = [_slug(labels["model"]), "mono", f"tp{labels['decode_tp']}", f"async-{on}"]
    else:
        shape = f"{labels['prefill_instances']}p{labels['decode_instances']}d"
        head = [_slug(labels["model"]), shape, f"tp{labels['prefill_tp']}", f"tp{labels['decode_tp']}", f"async-{on}"]
    rest = [_part(n, labels[n]) for n in varying if n not in _IN_EVERY_ID and labels.get(n) is not None]
    return "-".join(part for part in [*head, *rest] if part)


def digest(labels: Mapping[str, Any], length: int = 4) -> str:
    text = json.dumps(labels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def cell_ids(kind: str, labels: Sequence[Labels], varying: Sequence[str]) -> list[str]:
    """One id for each of these different labels; the hash is longer where two would share a short one."""
    ids = [f"{readable(kind, one, varying)}-{digest(one)}" for one in labels]
    return [
        i if ids.count(i) == 1 else f"{readable(kind, one, varying)}-{digest(one, 16)}"
        for one, i in zip(labels, ids, strict=True)
    ]


def deployment_ids(kind: str, labels: Sequence[Labels], varying: Sequence[str]) -> list[str]:
    """One id for equal deployments, from the labels that say what runs; a hash only where it is needed."""
    running = [{n: v for n, v in one.items() if n not in OF_THE_TASK} for one in labels]
    distinct = {compact_json(sorted(one.items())): one for one in running}
    names = [readable(kind, one, [n for n in varying if n not in OF_THE_TASK]) for one in distinct.values()]
    by_key = {
        key: name if names.count(name) == 1 else f"{name}-{digest(one, 16)}"
        for (key, one), name in zip(distinct.items(), names, strict=True)
    }
    return [by_key[compact_json(sorted(one.items()))] for one in running]


def same_value(label: Any, wanted: Any) -> bool:
    """Equality in which true is not 1; a wanted object is compared as its JSON text."""
    if isinstance(wanted, dict):
        wanted = compact_json(wanted)
    return isinstance(label, bool) == isinstance(wanted, bool) and bool(label == wanted)


def matches(labels: Labels, wanted: Mapping[str, Any]) -> bool:
    """Whether every wanted label has its value; a list of values means any of them."""
    return all(
        any(same_value(labels[name], v) for v in (value if isinstance(value, list) else [value]))
        for name, value in wanted.items()
    )


def read_match(config: Config, at: KeyPath, match: Mapping[str, Any], known: Iterable[str]) -> Labels:
    """A match by label names; paths such as `decode.tp` are taken too. Raises ConfigError for unknown ones."""
    names = list(known)
    wanted: Labels = {}
    for key, value in match.items():
        try:
            name = key if key in names else label_name(cell_path(key))
        except ValueError:
            name = key
        if name not in names:
            raise config.error((*at, key), f'"{key}" is no label of this sweep{did_you_mean(key, names)}')
        if name in wanted:
            raise config.error((*at, key), f"{name} is given twice, with {shown(wanted[name])} before")
        wanted[name] = value
    return wanted
