"""The deadlines of one request, at the price of one timer."""

from __future__ import annotations

import asyncio
import math

from proxy.errors import ErrorClass, LegName


class Guard:
    """Cancels the request's task when a deadline passes, or when the client goes away.

    Who catches the CancelledError asks `expired` (the deadline's class) and `gone`; with neither set, the
    server is stopping. A timer is kept and only looks at the deadline when it fires, because deadlines move
    with each chunk of a stream.
    """

    __slots__ = ("_class", "_deadline", "_loop", "_task", "_timer", "_timer_at", "expired", "gone", "leg", "waited")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        self._loop = loop
        self._task = task
        self._deadline = math.inf
        self._class: ErrorClass = "first_byte_timeout"
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self.leg: LegName = "prefill"
        self.expired: ErrorClass | None = None
        self.gone = False
        self.waited = 0.0

    def arm(self, seconds: float | None, error_class: ErrorClass) -> None:
        """From now on `seconds` may pass; None: any time."""
        if seconds is None:
            self._deadline = math.inf
            return
        self._deadline = self._loop.time() + seconds
        self._class = error_class
        self.waited = seconds
        if self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(self._deadline)

    def rest(self) -> None:
        """No deadline until the next `arm`: the time that passes is not the leg's."""
        self._deadline = math.inf

    def client_gone(self) -> None:
        if self.expired is None:
            self.gone = True
            self._task.cancel()

    def close(self) -> None:
        self._deadline = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        if self._deadline == math.inf or self.gone:
            return
        if self._loop.time() >= self._deadline:
            self.expired = self._class
            self._task.cancel()
        else:
            self._set_timer(self._deadline)
