"""deployment.json: what was started, when, and by which pids it can be found if the rig itself is killed."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.deploy import guard
from rig.planned import DeploymentPlan
from rig.provenance import RECORDED_PREFIXES
from rig.records import SCHEMA
from rig.secrets import masked, masked_argv


def identity(pid: int | None) -> dict[str, Any] | None:
    """`{pid, start, group, name}` of a living process; `start` in clock ticks since boot tells it from a later one.

    `group` is its process group.
    """
    stat = guard.stat_of(pid) if pid is not None else None
    return _seen(stat) if stat else None


def _seen(stat: guard.Stat) -> dict[str, Any]:
    try:
        group = os.getpgid(stat.pid)
    except OSError:
        group = None
    return {"pid": stat.pid, "start": stat.start, "group": group, "name": stat.name}


def described(plan: DeploymentPlan) -> dict[str, dict[str, Any]]:
    """What each process of a plan is started as, by name; secrets masked."""
    found: dict[str, dict[str, Any]] = {}
    for server in plan.servers:
        found[server.name] = {
            "role": server.role,
            "argv": masked_argv(server.argv),
            "env": masked(server.env),
            "url": server.url,
            "port": server.port,
            "side_channel_ports": list(server.side_channel_ports),
            "gpus": list(server.gpus),
            "tp": server.tp,
        }
    for attached in plan.attached:
        found[attached.name] = {"role": attached.role, "url": attached.url, "log": attached.log}
    if plan.proxy is not None:
        argv = masked_argv(plan.proxy.argv)
        found["proxy"] = {"role": "proxy", "argv": argv, "url": plan.proxy.url, "port": plan.proxy.port}
        if plan.proxy.kind != "pdrig":
            found["proxy"] |= {"kind": plan.proxy.kind, "env": masked(plan.proxy.env)}
    return found


def inherited() -> dict[str, str]:
    """The variables of the rig's own environment that reach servers and can change what they do; secrets masked."""
    return masked({k: v for k, v in sorted(os.environ.items()) if k.startswith(RECORDED_PREFIXES)})


def difference(recorded: Mapping[str, Any], plan: DeploymentPlan, engines: Mapping[str, Any]) -> str | None:
    """What of a recorded deployment would not be the same if `plan` were launched now; None where all of it would.

    `engines` are the versions of the engines, as recorded in `engines`.
    """
    processes, planned = recorded.get("processes", {}), described(plan)
    if processes.keys() != planned.keys():
        return f"it had the processes {', '.join(processes)}, now {', '.join(planned)}"
    for name, wanted in planned.items():
        if changed := _changed({key: processes[name].get(key) for key in wanted}, wanted):
            return f"{name}: {changed}"
    now = {"environment": inherited(), "engines": dict(engines)}
    return _changed({key: recorded.get(key) or {} for key in now}, now)


def _changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first of these that is another now, down to the single variable or version."""
    for key in {**was, **now}:
        old, new = was.get(key), now.get(key)
        if old != new:
            if isinstance(old, dict) and isinstance(new, dict):
                return f"{key}: {_changed(old, new)}"
            return f"{key} was {_shown(old)}, now {_shown(new)}"
    return None


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


class Record:
    """The file, rewritten whole at every change. Times are unix seconds, absent is null."""

    def __init__(self, plan: DeploymentPlan, folder: Path) -> None:
        self._path = folder / "deployment.json"
        self._processes = described(plan)
        self._data: dict[str, Any] = {
            "schema": SCHEMA,
            "id": plan.id,
            "kind": plan.kind,
            "launcher": plan.launcher,
            "model": plan.model,
            "connector": plan.connector,
            "boot_id": boot_id(),
            "rig": identity(os.getpid()),
            "started_unix": time.time(),
            "ready_unix": None,
            "stopped_unix": None,
            "failure": None,
            "leftovers": [],
            "environment": inherited(),
            "processes": self._processes,
        }
        self._write()

    def update(self, **fields: Any) -> None:
        """Sets fields of the deployment."""
        self._data.update(fields)
        self._write()

    def process(self, name: str, **fields: Any) -> None:
        """Sets fields of one process."""
        self._processes[name].update(fields)
        self._write()

    def tree(self, name: str, tree: Sequence[guard.Stat]) -> None:
        """Notes all pids of a server, so that its engine is found even if its parents are gone."""
        self.process(name, tree=[_seen(stat) for stat in tree])

    def read(self) -> Mapping[str, Any]:
        """What the file holds."""
        return self._data

    def _write(self) -> None:
        temporary = self._path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(self._data, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._path)


def boot_id() -> str | None:
    """What tells this boot of the machine from others: pids and start times mean nothing across them."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
