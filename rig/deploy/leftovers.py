"""What a killed rig left running, found by what it wrote down, and ended. Nothing else is touched.

A process is the rig's own only if its pid, its start time and its process group are those in a deployment.json that
was written since the machine booted.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.deploy import guard
from rig.deploy.process import GUARD_MARGIN_S
from rig.deploy.record import boot_id
from rig.errors import DataError, RunError, UsageError


@dataclass(frozen=True)
class Leftover:
    """A living process of an earlier launch: `server` is whose, as the deployment names it."""

    pid: int
    start: int
    name: str
    deployment: str
    server: str
    is_guard: bool

    def __str__(self) -> str:
        return f"{self.deployment}/{self.server}: pid {self.pid} ({self.name})"

    def lives(self) -> bool:
        stat = guard.stat_of(self.pid)
        return stat is not None and stat.start == self.start and stat.lives


def require_ended(run: Path) -> None:
    """Raises UsageError while the rig that started a deployment of this run still runs."""
    for name, data in _deployments(run):
        rig = data.get("rig")
        if rig and rig["pid"] != os.getpid() and _is(rig):
            raise UsageError(f"{run} is still being run by pid {rig['pid']} ({name}); end it first, or wait for it")


def find(run: Path) -> list[Leftover]:
    """The processes of a run's deployments that still live; guards first."""
    found: dict[int, Leftover] = {}
    for deployment, data in _deployments(run):
        for server, process in data["processes"].items():
            own, rest = process.get("guard"), [process.get("process"), *process.get("tree", ())]
            for seen in (own, *rest):
                if seen and seen["pid"] not in found and _is(seen):
                    found[seen["pid"]] = Leftover(
                        seen["pid"], seen["start"], seen["name"], deployment, server, seen is own
                    )
    return sorted(found.values(), key=lambda left: not left.is_guard)


def stop(left: Iterable[Leftover], grace_s: float) -> None:
    """End them and all that is below them: the guards do it where they can, within `grace_s` and a margin.

    Raises RunError naming what could not be ended.
    """
    wanted = list(left)
    trees = {known.pid: known for known in [*wanted, *(below for one in wanted for below in _below(one))]}
    for one in wanted:
        if one.is_guard:
            # A guard that was stopped with its rig cannot end anything until it goes on.
            _signal(one, signal.SIGTERM)
            _signal(one, signal.SIGCONT)
    guards = [one for one in wanted if one.is_guard]
    _wait(guards, grace_s + GUARD_MARGIN_S)
    for one in trees.values():
        _signal(one, signal.SIGKILL)
    _wait(trees.values(), GUARD_MARGIN_S)
    if alive := [str(one) for one in trees.values() if one.lives()]:
        raise RunError(f"left running by an earlier attempt, and not to be ended: {'; '.join(alive)}")


def _deployments(run: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and records of the launches since the machine booted. Raises DataError for one that cannot be read."""
    for path in sorted(run.glob("deployments/*/deployment.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            text = "damaged, so what it may have left running is not known: see to that, and remove the file"
            raise DataError(f"{path}: {text}") from None
        if data.get("boot_id") == boot_id():
            yield path.parent.name, data


def _is(seen: Mapping[str, Any]) -> bool:
    stat = guard.stat_of(seen["pid"])
    if stat is None or not stat.lives or stat.start != seen["start"]:
        return False
    with suppress(OSError):
        return os.getpgid(seen["pid"]) == seen.get("group")
    return False


def _below(one: Leftover) -> list[Leftover]:
    return [
        Leftover(stat.pid, stat.start, stat.name, one.deployment, one.server, False)
        for stat in guard.descendants(one.pid)
    ]


def _signal(one: Leftover, number: signal.Signals) -> None:
    """By a handle of the process, so that a pid that is taken anew between look and signal is not hit."""
    with suppress(OSError):
        handle = os.pidfd_open(one.pid)
        try:
            if one.lives():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _wait(wanted: Iterable[Leftover], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for one in wanted:
        with suppress(OSError):
            handle = os.pidfd_open(one.pid)
            try:
                if one.lives():
                    select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(handle)
