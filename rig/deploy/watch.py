"""Watching what is not ours: a server or a router that runs already. Stops nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rig.deploy import ready
from rig.deploy.logs import LogTail, decisive_line, engine_dead
from rig.deploy.process import Failure
from rig.ending import end

WATCH_S = 2.0
# A busy server may miss its moment; one that is refused so often in a row is gone.
MISSES = 3


class AttachedWatch:
    """Asks for its health and reads its log, if that is a file here.

    A server that answers that it is sick is of no more use; a router may say so of one server among several, so with
    `sick_is_over` false only one that takes no connections is.
    """

    def __init__(
        self, name: str, url: str, log: str | None = None, path: str = ready.HEALTH, sick_is_over: bool = True
    ) -> None:
        self.name = name
        self.log = Path(log) if log else None
        self.failed: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._url = url
        self._path = path
        self._sick_is_over = sick_is_over
        self._tail = LogTail(self.log, from_end=True) if self.log else None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch, once there was an answer."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> tuple[str, ...]:
        """Ends the watching; what is watched runs on."""
        if self._task is not None:
            await end(self._task)
        return ()

    async def _watch(self) -> None:
        misses = 0
        async with ready.client() as http:
            while not self.failed.done():
                await asyncio.sleep(WATCH_S)
                if any(engine_dead(line) for line in (self._tail.read_new() if self._tail else ())):
                    self._fail("says that its engine died")
                    return
                health = await ready.health(http, self._url, self._path)
                misses = misses + 1 if health == "refused" else 0
                if health == "sick" and self._sick_is_over:
                    self._fail(f"answers {self._path} with a server error")
                elif misses >= MISSES:
                    self._fail("does not accept connections any more")

    def _fail(self, what: str) -> None:
        if not self.failed.done():
            self.failed.set_result(Failure(what, decisive_line(self._tail.text()) if self._tail else None))
