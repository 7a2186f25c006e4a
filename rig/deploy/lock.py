"""One sweep at a time on a machine's GPUs: a lock that names its holder, and a look at who else uses them."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rig.deploy import gpu
from rig.errors import UsageError
from rig.planned import SweepPlan

POLL_S = 1.0


def local_gpus(plan: SweepPlan) -> tuple[str, ...]:
    """The GPUs of this machine that the sweep's own servers use; none for a sweep on CPUs, or on running servers."""
    servers = [s for d in plan.deployments for s in d.servers if s.host is None]
    return tuple(dict.fromkeys(name for server in servers for name in server.gpus))


def lock_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's lock of this machine's GPUs. Not in the runtime folder, which a job of cron or CI may not have."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pdrig" / f"gpus-{platform.node() or 'localhost'}.lock"


@contextmanager
def gpus_locked(plan: SweepPlan) -> Iterator[Callable[[Path], None]]:
    """Hold the lock, where the sweep uses GPUs of this machine; yields what writes down the run's folder.

    The kernel gives the lock back when its holder ends, however it does. Raises UsageError naming the holder.
    """
    if not local_gpus(plan):
        yield lambda run: None
        return
    path = lock_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"the GPUs of this machine are taken by {_holder(file)}; wait for it, or end it") from None
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

        def note(run: Path | None) -> None:
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "run": str(run) if run else None, "started": started}))
            file.flush()

        note(None)
        yield note


def require_unused(plan: SweepPlan, wait_s: float = 0.0) -> None:
    """Look at the sweep's GPUs, for up to `wait_s` seconds: what has just been ended gives its memory back late.

    Raises UsageError naming GPU and process where somebody else uses one.
    """
    wanted = local_gpus(plan)
    deadline = time.monotonic() + wait_s
    while used := gpu.users(wanted):
        if time.monotonic() >= deadline:
            name, who = next(iter(used.items()))
            more = f" (and {len(used) - 1} more of the sweep's GPUs are used)" if len(used) > 1 else ""
            raise UsageError(f"GPU {name} is used by {who}{more}: end that, or name other GPUs in CUDA_VISIBLE_DEVICES")
        time.sleep(POLL_S)


def _holder(file: IO[str]) -> str:
    """Who holds the lock, in words."""
    file.seek(0)
    try:
        data: dict[str, Any] = json.loads(file.read())
        run = f", run {data['run']}" if data["run"] else ""
        return f"the sweep with pid {data['pid']} (since {data['started']}{run})"
    except (ValueError, KeyError, TypeError):
        return "another sweep"
