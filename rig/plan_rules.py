"""What vLLM refuses only at start-up or at the first hand-off, said when the sweep is planned. Pure.

Each rule names the file of vLLM that it was read from and the engine versions it holds for. A rule that makes a cell
impossible is an error, and a note where the engine is of another version, or where the cell is expected to fail. What
is only likely to fail is a note.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rig.config import Config
from rig.config_matrix import Cell
from rig.connectors import adapter, through_storage, why_none
from rig.plan_pairs import pair_of, serves_vllm
from rig.plan_rules_connectors import CONNECTOR_RULES
from rig.plan_rules_models import MODEL_RULES
from rig.yaml_source import dotted

RULES = (*CONNECTOR_RULES, *MODEL_RULES)


@dataclass
class _Notes:
    cells: dict[str, list[str]] = field(default_factory=dict)

    def add(self, text: str, cell_id: str) -> None:
        listed = self.cells.setdefault(text, [])
        if cell_id not in listed:
            listed.append(cell_id)

    def lines(self) -> list[str]:
        return [f"{', '.join(ids)}: {text}" for text, ids in self.cells.items()]


def rule_notes(config: Config, cells: Iterable[tuple[str, Cell, bool]]) -> list[str]:
    """Notes on these cells, each with its id and whether it is expected to fail.

    Raises ConfigError for the first rule that makes a cell impossible.
    """
    notes = _Notes()
    for cell_id, cell, expected in cells:
        engine = config.sweep.engines[cell.settings.engine]
        if config.sweep.attach is not None or not serves_vllm(engine):
            continue
        version = config.versions.get(cell.settings.engine)
        pair = pair_of(config, cell)
        connector, *inside = pair.prefill.connectors
        if adapter(connector, tuple(inside)) is None and not through_storage(connector):
            notes.add(f"no verdict on the hand-off: {why_none(connector, tuple(inside))}", cell_id)
        for rule in RULES:
            for found in rule.check(pair):
                where = f"(vLLM {', '.join(rule.versions)}: {rule.source})"
                if found.certain and rule.holds_for(version) and not expected:
                    raise config.error(cell.at(found.key), f"{found.problem} {where}")
                text = f"{dotted(cell.at(found.key))}: {found.problem} {where}"
                if not rule.holds_for(version):
                    text += f"; this engine is {version}, where the rule may have changed"
                notes.add(text if found.certain else f"may fail: {text}", cell_id)
    return notes.lines()
