"""How the rig ends in good order: the signals that end it, and tasks that it needs no longer."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ending() -> tuple[signal.Signals, ...]:
    """Those of ENDING that this process is to end by: what `nohup` started outlives its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in ENDING if number != signal.SIGHUP or not ignored)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end; what ended it before is raised, and so is a stop of the caller's."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
