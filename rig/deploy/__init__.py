"""Processes: brings a planned deployment up, watches it, and ends it without a trace."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rig.deploy import attach, local, remote, slurm, ssh
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import Event, Phase
from rig.deploy.salloc import sweep_in_allocation
from rig.planned import DeploymentPlan, RemotePlan

__all__ = [
    "Deployment",
    "Event",
    "Phase",
    "Running",
    "engine_on",
    "launch",
    "machines_of",
    "require_startable",
    "sweep_in_allocation",
]

_LAUNCH: dict[str, Callable[[DeploymentPlan, Path, Callable[[Event], None]], Awaitable[Deployment]]] = {
    "local": local.launch,
    "attach": attach.launch,
    "slurm": slurm.launch,
    "ssh": ssh.launch,
}
_REQUIRE = {
    "local": local.require_startable,
    "attach": local.require_startable,
    "slurm": slurm.require_startable,
    "ssh": ssh.require_startable,
}


_CARRIER: dict[str, Callable[[RemotePlan], remote.Carrier]] = {"slurm": slurm.carrier, "ssh": ssh.carrier}


def machines_of(plan: DeploymentPlan) -> tuple[str | None, ...]:
    """Where the plan's servers run, as its launcher calls the machines; None is this one. Raises UsageError."""
    if plan.launcher == "slurm" and any(server.host for server in plan.servers):
        plan = slurm.placed(plan, slurm.allocation().nodes)
    return tuple(dict.fromkeys(None if s.host is None else remote.machine(s) for s in plan.servers))


@cache
def engine_on(machine: str, launcher: str, plan: RemotePlan, words: tuple[str, ...]) -> Mapping[str, Any]:
    """What an engine is on another machine; empty where it cannot be asked, or no launcher gets there."""
    if launcher not in _CARRIER or words[0] == sys.executable:
        return {}
    return remote.engine(_CARRIER[launcher](plan), machine, words)


def require_startable(plan: DeploymentPlan) -> None:
    """Raises UsageError, EngineNotFound or PortLost if the plan cannot be started here and now."""
    _REQUIRE[plan.launcher](plan)


async def launch(plan: DeploymentPlan, folder: Path, on_event: Callable[[Event], None]) -> Deployment:
    """Brings a deployment up: servers side by side, each checked by a real completion, then the proxy and the pair.

    Writes deployment.json, logs/ and legs.jsonl into `folder`. Raises UsageError, EngineNotFound or PortLost before
    anything starts, later StartFailed, StartTimeout, NotUsable, ServerDied or PortLost; then, and when it is
    cancelled, everything it started has been stopped.
    """
    return await _LAUNCH[plan.launcher](plan, folder, on_event)
