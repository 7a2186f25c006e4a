"""Which processes of a test are still there."""

from __future__ import annotations

from rig.deploy.guard import stat_of


def alive(pid: int) -> bool:
    """Whether a process with this pid runs; one that ended and was not waited for does not."""
    stat = stat_of(pid)
    return stat is not None and stat.lives
