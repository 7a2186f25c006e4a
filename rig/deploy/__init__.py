"""Processes: brings a planned deployment up, watches it, and ends it without a trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from rig.deploy import attach, local, slurm, ssh
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import Event, Phase
from rig.deploy.slurm import enter_allocation
from rig.planned import DeploymentPlan

__all__ = ["Deployment", "Event", "Phase", "Running", "enter_allocation", "launch", "require_startable"]

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
