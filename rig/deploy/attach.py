"""`launcher: attach`: servers that somebody else runs (Slurm, Kubernetes, containers). Only the proxy is ours."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from rig.deploy import ready
from rig.deploy.deployment import Deployment, Running
from rig.deploy.events import OnEvent
from rig.deploy.local import require_startable
from rig.deploy.logs import LogTail, decisive_line, engine_dead
from rig.deploy.process import Failure
from rig.deploy.startup import Startup, side_by_side
from rig.errors import NotUsable, StartFailed
from rig.planned import AttachedServer, DeploymentPlan

WATCH_S = 2.0
# A busy server may miss its moment; one that is refused so often in a row is gone.
MISSES = 3


class AttachedWatch:
    """Asks a foreign server for its health and reads its log, if that is a file here. Stops nothing."""

    def __init__(self, plan: AttachedServer) -> None:
        self.name = plan.name
        self.log = Path(plan.log) if plan.log else None
        self.failed: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._url = plan.url
        self._tail = LogTail(self.log, from_end=True) if self.log else None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch, once the server has answered."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> tuple[str, ...]:
        """Ends the watching; the server runs on."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        return ()

    async def _watch(self) -> None:
        misses = 0
        async with ready.client() as http:
            while not self.failed.done():
                await asyncio.sleep(WATCH_S)
                if any(engine_dead(line) for line in (self._tail.read_new() if self._tail else ())):
                    self._fail("says that its engine died")
                    return
                health = await ready.health(http, self._url)
                misses = misses + 1 if health == "refused" else 0
                if health == "sick":
                    self._fail("answers /health with a server error")
                elif misses >= MISSES:
                    self._fail("does not accept connections any more")

    def _fail(self, what: str) -> None:
        if not self.failed.done():
            self.failed.set_result(Failure(what, decisive_line(self._tail.text()) if self._tail else None))


async def launch(plan: DeploymentPlan, folder: Path, on_event: OnEvent) -> Deployment:
    """Attaches to running servers; errors as for `rig.deploy.launch`."""
    require_startable(plan)
    startup = Startup(plan, folder, on_event)

    async def servers() -> tuple[Running, ...]:
        return await side_by_side([_attach(startup, server) for server in plan.attached])

    return await startup.launch(servers)


async def _attach(startup: Startup, plan: AttachedServer) -> Running:
    """Checks that a server answers usefully. Raises StartFailed, NotUsable."""
    limit_s = startup.plan.limits.check_s
    watch = AttachedWatch(plan)
    startup.join(watch)
    metrics_url = plan.metrics_url or f"{plan.url}/metrics"
    async with ready.client() as http:
        if await ready.health(http, plan.url) != "well":
            raise StartFailed(f"{plan.name}: no healthy server at {plan.url}; start it, or mend its url", plan.name)
        startup.say(plan.name, "checking", plan.url)
        try:
            async with asyncio.timeout(limit_s):
                await ready.check_server(http, plan.name, plan.url, plan.model)
                await ready.check_metrics(http, plan.name, metrics_url)
        except TimeoutError:
            raise NotUsable(
                f"{plan.name} is healthy, but a completion took more than {limit_s:g} s (limits.check_s)", plan.name
            ) from None
    watch.start()
    startup.say(plan.name, "ready", plan.url)
    return Running(plan.name, plan.role, plan.url, metrics_url, watch.log, None, None, None)
