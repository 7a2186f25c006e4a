"""The clock of an event loop, which a test sets forward: a limit passes when the test says so, and no sooner."""

from __future__ import annotations

import asyncio


class Clock:
    """That of the running loop. Limits under it can be long, so that a busy machine breaks none, and cost no time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self._ahead_s = 0.0
        loop.time = lambda: real() + self._ahead_s  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        """What is due within so long is due now, as far as the loop keeps its time."""
        self._ahead_s += seconds
