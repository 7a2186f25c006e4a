"""What is asked of one deployment, on as many launches of it as that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rig.cell import failed
from rig.deploy import Deployment, Event, launch
from rig.errors import DeployError
from rig.planned import CellPlan, DeploymentPlan
from rig.progress import Display
from rig.store import RunFolder

T = TypeVar("T")


@dataclass(frozen=True)
class Launches:
    """Those of a run. `engines` are the versions of its engines by their programs; `beside` says that lanes of
    deployments run at once, so that a server is told by its deployment too.
    """

    run: RunFolder
    display: Display
    engines: Mapping[str, Mapping[str, Any]]
    beside: bool = False

    def engines_of(self, plan: DeploymentPlan) -> dict[str, Any]:
        """The versions of a deployment's engines, by their programs."""
        programs = {server.argv[0] for server in plan.servers}
        return {program: known for program, known in self.engines.items() if program in programs}

    async def ask(
        self,
        plan: DeploymentPlan,
        left: list[T],
        ask: Callable[[T, Deployment, str], Awaitable[bool]],
        lost: Callable[[T, str, DeployError], None],
    ) -> None:
        """Take what is `left` from its front until nothing is, on servers that are replaced when they are no use.

        `ask` is given the launch and its name, says whether it can be trusted with more, and may put more in front of
        what is left; `lost` is told of all that is left where a launch fails, and nothing more is tried then.
        """
        while left:
            name = self.run.new_deployment(plan.id)
            try:
                deployment = await launch(plan, self.run.deployment(name), partial(self._event, plan))
            except DeployError as error:
                for one in left:
                    lost(one, name, error)
                return
            try:
                deployment.note(engines=self.engines_of(plan))
                trusted = True
                while left and trusted:
                    trusted = await ask(left.pop(0), deployment, name)
            finally:
                for what in await asyncio.shield(deployment.stop()):
                    self.display.say(f"left running: {what}")

    def fail(self, cell: CellPlan, plan: DeploymentPlan, name: str, error: DeployError) -> None:
        """Write down, and say, that a cell's launch came to nothing."""
        self.run.write_cell(failed(cell, plan, name, error))
        self.display.say(f"{cell.id}: failed, {error}")

    def _event(self, plan: DeploymentPlan, event: Event) -> None:
        name = f"{plan.id}/{event.server}" if self.beside else event.server
        self.display.server(name, event.phase, event.text)
