"""Which processes of a test are still there."""

from __future__ import annotations

from rig.deploy.guard import stat_of


def alive(pid: int, start: int | None = None) -> bool:
    """Whether a process with this pid runs; one that ended and was not waited for does not.

    `start` in clock ticks since boot, where it is known, tells it from a later one with the same pid.
    """
    stat = stat_of(pid)
    return stat is not None and stat.lives and start in (None, stat.start)
