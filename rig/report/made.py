"""What the engines of a run were, and what was set for them; pure."""

from __future__ import annotations

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
