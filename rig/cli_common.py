"""What several commands need: a plan from a file, and work that a signal ends cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rig.errors import Interrupted

T = TypeVar("T")


def planned_sweep(config: Path, **options: Any) -> Any:
    """The plan of a sweep file for this machine. Raises ConfigError."""
    from rig.config import load_config
    from rig.machine import detect_machine
    from rig.plan import plan_sweep

    return plan_sweep(load_config(config), detect_machine(), **options)


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
