"""Processes: brings a planned deployment up, watches it, and ends it without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rig.deploy import attach, local
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import Event, Phase
from rig.deploy.local import require_startable
from rig.planned import DeploymentPlan

__all__ = ["Deployment", "Event", "Phase", "Running", "launch", "require_startable"]


async def launch(plan: DeploymentPlan, folder: Path, on_event: Callable[[Event], None]) -> Deployment:
    """Brings a deployment up: servers side by side, each checked by a real completion, then the proxy and the pair.

    Writes deployment.json, logs/ and legs.jsonl into `folder`. Raises UsageError, EngineNotFound or PortLost before
    anything starts, later StartFailed, StartTimeout, NotUsable, ServerDied or PortLost; then, and when it is
    cancelled, everything it started has been stopped.
    """
    start = attach.launch if plan.launcher == "attach" else local.launch
    return await start(plan, folder, on_event)
