"""Who listens on a port of this machine."""

from __future__ import annotations

import psutil

from rig.deploy.guard import stat_of
from rig.deploy.node import is_bound as is_bound
from rig.errors import PortLost


def listener(port: int) -> psutil.Process | None:
    """The process that listens on a TCP port, any address; None if there is none or this user may not see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return psutil.Process(connection.pid) if connection.pid else None
    except psutil.Error:
        return None
    return None


def describe(process: psutil.Process) -> str:
    """`pid 4711 (vllm serve ...)`, the command shortened: only its first words, which hold no secrets."""
    try:
        words = process.cmdline()[:3]
    except psutil.Error:
        words = []
    stat = stat_of(process.pid)
    name = " ".join(words) or (stat.name if stat else "")
    return f"pid {process.pid} ({name[:100]})" if name else f"pid {process.pid}"


def require_free(port: int, server: str, key: str = "") -> None:
    """Raises PortLost, naming the holder where /proc shows it, if the planned port is bound; `key` is the error's."""
    if is_bound(port):
        held = listener(port)
        by = f" by {describe(held)}" if held else ""
        raise PortLost(f"{server}: port {port} is taken{by}; stop that process or plan another port", server, key=key)


def started_before(pid: int, other: int | None) -> bool:
    """Whether the first process is older than the second; False if one of them is gone."""
    one = stat_of(pid)
    two = stat_of(other) if other is not None else None
    return one is not None and two is not None and one.start < two.start
