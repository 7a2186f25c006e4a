"""What the engines of a run were, and what was set for them; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rig.labels import label_text
from rig.records import RunInfo
from rig.report.rows import Column


def engine_columns(info: RunInfo) -> list[Column]:
    """What each engine's environment holds, a row an engine; what no engine is known to have is left out."""
    names = dict.fromkeys(name for facts in info.engines.values() for name, value in facts.items() if value is not None)
    found = [Column("engine", tuple(info.engines))]
    found += [
        Column(name.replace("_", " "), tuple(label_text(f.get(name)) for f in info.engines.values())) for name in names
    ]
    return found if names else []


def variables(info: RunInfo) -> list[list[str]]:
    """Deployment, server, variable and value of every variable that was set for a server; secrets are masked."""
    return [
        [deployment, server, name, value]
        for deployment, servers in info.server_env.items()
        for server, env in servers.items()
        for name, value in env.items()
    ]


def flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Under short names, whatever is nested; lists of texts on one line."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            found |= {f"{name} {key}": text for key, text in flat(value).items()}
        elif isinstance(value, bool):
            found[name] = "yes" if value else "no"
        elif isinstance(value, list):
            text = ", ".join(x if isinstance(x, str) else json.dumps(x, sort_keys=True) for x in value)
            found[name] = text or "none"
        else:
            found[name] = label_text(value)
    return found
