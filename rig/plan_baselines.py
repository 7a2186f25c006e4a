"""The cells that other cells are held against: monolithic servers, or cells with other labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rig.config import Config
from rig.config_matrix import Cell, CellPath
from rig.config_models import MonolithicBaseline
from rig.config_types import canonical
from rig.machine import Machine
from rig.plan_args import compact_json, merge_args, merge_env
from rig.plan_labels import PASS, Labels, label_name, same_value
from rig.plan_servers import Draft, ServerNeeds, draft_server, role_needs
from rig.yaml_source import KeyPath


@dataclass(frozen=True)
class Monolithic:
    """One server that answers alone, what it is called, and its command."""

    labels: Labels
    draft: Draft


def monolithic_needs(config: Config, cell: Cell, wanted: MonolithicBaseline, at: KeyPath) -> ServerNeeds:
    """Decode's server without a connector, with what the baseline says on top, `at` its place in the file."""
    decode = role_needs(cell, "decode", config)
    engine = wanted.engine or decode.engine
    settings = cell.settings
    return replace(
        decode,
        role="monolithic",
        engine=engine,
        tp=wanted.tp or decode.tp,
        async_scheduling=decode.async_scheduling if wanted.async_scheduling is None else wanted.async_scheduling,
        args=merge_args(settings.both.args, settings.decode.args, wanted.args),
        env=merge_env(config.sweep.engines[engine].env, settings.both.env, settings.decode.env, wanted.env),
        port=wanted.port or decode.port,
        kv_transfer_config=None,
        side_channel=None,
        port_key=(*at, "monolithic", "port") if wanted.port else None,
    )


def plan_monolithic(
    config: Config,
    cell: Cell,
    machine: Machine,
    wanted: MonolithicBaseline,
    at: KeyPath,
    labels: Labels,
    extras: Sequence[CellPath],
) -> Monolithic:
    """The monolithic server of a PD cell. Its labels are the cell's where they apply to one server, else None.

    `labels` are the cell's; `decode_tp` says the TP of the one server.
    """
    needs = monolithic_needs(config, cell, wanted, at)
    own: Labels = {
        **labels,
        **attached_labels(labels, extras),
        "engine": needs.engine,
        "decode_tp": needs.tp,
        "async_scheduling": needs.async_scheduling,
    }
    for path in extras:
        own[label_name(path)] = _applied(path, needs)
    return Monolithic(own, draft_server(config, cell, machine, needs, 0, spread=False))


def attached_labels(labels: Labels, extras: Sequence[CellPath]) -> Labels:
    """Labels of a monolithic server of which nothing more is known than whose baseline it is."""
    none = dict.fromkeys(("prefill_tp", "prefill_instances", "connector", *map(label_name, extras)))
    return {**labels, **none, "decode_instances": 1}


def _applied(path: CellPath, needs: ServerNeeds) -> object:
    """What the server has of an axis: an option or variable of decode or both; other axes do not apply."""
    if len(path) != 3 or path[0] == "prefill":
        return None
    values: Mapping[str, object] = needs.args if path[1] == "args" else needs.env if path[1] == "env" else {}
    value = values.get(canonical(path[2], None)[0] if path[1] == "args" else path[2])
    if value is None and path[1] == "args" and path[2].startswith("no"):
        bare = values.get(canonical(path[2], True)[0])
        value = not bare if isinstance(bare, bool) else None
    return compact_json(value) if isinstance(value, dict | list) else value


def find_cell(wanted: Labels, labels: Labels, ids: Mapping[str, Labels]) -> str | None:
    """The id of the cell that has the wanted labels and shares all others with `labels`; None where none does.

    A pass is held against the same pass, or against a cell that is asked once; a cell that is asked once against
    the first pass.
    """
    target = {**labels, **wanted}
    passes = [target[PASS]] if PASS in wanted else [target[PASS], 1 if target[PASS] is None else None]
    for number in passes:
        exact = {**target, PASS: number}
        for cell_id, other in ids.items():
            if all(same_value(other[name], value) for name, value in exact.items()):
                return cell_id
    return None
