"""What several commands need: a plan from a file, and work that a signal ends cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rig.errors import Interrupted

T = TypeVar("T")


def planned_sweep(config: Path, *, parallel: int | None = None, **options: Any) -> Any:
    """The plan of a sweep file for this machine; in `parallel` lanes at most, where that is given.

    Raises ConfigError.
    """
    from rig.config import load_config
    from rig.machine import detect_machine
    from rig.plan import plan_sweep
    from rig.plan_lanes import side_by_side

    machine = detect_machine()
    planned = plan_sweep(load_config(config), machine, **options)
    if parallel is None:
        return planned
    wanted = options.get("gpus")
    return side_by_side(planned, machine.gpus if wanted is None else [str(i) for i in range(wanted)], parallel)


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; SIGINT and SIGTERM cancel the work, which then cleans up. Raises Interrupted."""

    async def main() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise Interrupted("interrupted; what was finished is on disk") from None
