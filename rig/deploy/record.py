"""deployment.json: what was started, when, and by which pids it can be found if the rig itself is killed."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.deploy import guard
from rig.planned import DeploymentPlan
from rig.records import SCHEMA
from rig.secrets import MASK, masked

_SECRET_FLAG = re.compile(r"^--?(?:\S*[-_])?(?:api[-_]?key|token|secret|password)$", re.IGNORECASE)


def masked_argv(argv: Sequence[str]) -> list[str]:
    """A command that can be shown: the values of secret flags (`--api-key X`, `--hf-token=X`) replaced."""
    shown: list[str] = []
    hide = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        secret = bool(_SECRET_FLAG.match(flag))
        shown.append(MASK if hide else f"{flag}={MASK}" if secret and equals else word)
        hide = secret and not equals and not hide
    return shown


def identity(pid: int | None) -> dict[str, Any] | None:
    """`{pid, start, name}` of a living process; `start` in clock ticks since boot tells it from a later one."""
    stat = guard.stat_of(pid) if pid is not None else None
    return {"pid": stat.pid, "start": stat.start, "name": stat.name} if stat else None


class Record:
    """The file, rewritten whole at every change. Times are unix seconds, absent is null."""

    def __init__(self, plan: DeploymentPlan, folder: Path) -> None:
        self._path = folder / "deployment.json"
        self._processes: dict[str, dict[str, Any]] = {}
        self._data: dict[str, Any] = {
            "schema": SCHEMA,
            "id": plan.id,
            "kind": plan.kind,
            "launcher": plan.launcher,
            "model": plan.model,
            "connector": plan.connector,
            "boot_id": _boot_id(),
            "rig": identity(os.getpid()),
            "started_unix": time.time(),
            "ready_unix": None,
            "stopped_unix": None,
            "failure": None,
            "leftovers": [],
            "processes": self._processes,
        }
        for server in plan.servers:
            self._processes[server.name] = {
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
            self._processes[attached.name] = {"role": attached.role, "url": attached.url, "log": attached.log}
        if plan.proxy is not None:
            argv = masked_argv(plan.proxy.argv)
            self._processes["proxy"] = {"role": "proxy", "argv": argv, "url": plan.proxy.url, "port": plan.proxy.port}
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
        self.process(name, tree=[{"pid": stat.pid, "start": stat.start, "name": stat.name} for stat in tree])

    def read(self) -> Mapping[str, Any]:
        """What the file holds."""
        return self._data

    def _write(self) -> None:
        temporary = self._path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(self._data, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._path)


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
