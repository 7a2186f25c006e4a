"""What is looked at before an evaluation and after it: the engines' counters, their KV caches, their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rig import connectors
from rig.attempts import LogSpan, Part
from rig.counters import Source, read_idle, read_once, read_settled
from rig.deploy.deployment import Deployment, Running
from rig.deploy.logs import read_between, size
from rig.log_findings import LogFindings, findings_in
from rig.records import Finding
from rig.series import Reading

GRACE_S = 5.0
"""How much longer than a lease an engine may take to give blocks back, in seconds."""

FIRST_LOOK_S = 0.5
LONGEST_PAUSE_S = 4.0
"""Seconds between looks at the counters during an evaluation: first and longest, each twice the one before."""
SETTLED_S = 1.0
"""How long before a reading a request must have ended to be counted by it for certain, in seconds."""


@dataclass(frozen=True)
class Start:
    """The state before: readings, and how long each log was, in bytes by instance."""

    readings: tuple[Reading, ...]
    log_sizes: Mapping[str, int]


@dataclass(frozen=True)
class Observed:
    """The readings on both sides of an evaluation, and what the logs say of the time between."""

    before: tuple[Reading, ...]
    after: tuple[Reading, ...]
    logs: LogFindings


async def readings_of(deployment: Deployment) -> tuple[Reading, ...]:
    """The counters, once they are at rest."""
    return await read_settled(_sources(deployment))


async def start_of(deployment: Deployment) -> Start:
    """Look before the first request."""
    readings = await readings_of(deployment)
    return Start(readings, {s.name: size(s.log) for s in deployment.servers if s.log is not None})


async def end_of(deployment: Deployment, start: Start) -> Observed:
    """Look after the last answer, once the KV caches are as empty as before, at most a lease and GRACE_S later.

    A sound deployment has given all blocks back by then, and is not waited for.
    """
    config = deployment.plan.kv_transfer
    keeps = connectors.decode_keeps(config)
    waited_for = [reading for reading in start.readings if not (keeps and reading.role == "decode")]
    after = await read_idle(_sources(deployment), waited_for, connectors.lease_s(config) + GRACE_S)
    logs = await asyncio.to_thread(findings_in, _lines(deployment.servers, start.log_sizes))
    unread = tuple(
        Finding("transfer", f"the log of {s.name} is not at hand: what it says of single requests is not known", "logs")
        for s in deployment.servers
        if s.log is None
    )
    return Observed(start.readings, after, replace(logs, findings=(*logs.findings, *unread)))


@dataclass(frozen=True)
class Tally:
    """How far an evaluation is: ids of the requests whose records are on disk, and how many were begun."""

    ended: tuple[str, ...]
    begun: int


async def follow(
    deployment: Deployment, name: str, start: Start, tally: Callable[[], Tally], keep: Callable[[Part], None]
) -> None:
    """Look at the counters every now and then, for as long as the evaluation goes on: what is seen goes to `keep`.

    A reading speaks for the records that were on disk SETTLED_S before it: an engine publishes what a step did with
    the next one. Where an instance does not answer there is no reading.
    """
    pause = FIRST_LOOK_S
    while True:
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
        await deployment.flush_legs()
        ended = tally().ended
        await asyncio.sleep(SETTLED_S)
        readings = await read_once(_sources(deployment))
        if (part := part_of(deployment, name, start, readings, Tally(ended, tally().begun))) is not None:
            keep(part)


def part_of(
    deployment: Deployment, name: str, start: Start, readings: tuple[Reading, ...], tally: Tally
) -> Part | None:
    """What these readings speak for; None where an instance did not answer."""
    if any(reading.missing for reading in readings):
        return None
    logs = {
        s.name: LogSpan(str(s.log), start.log_sizes[s.name], size(s.log))
        for s in deployment.servers
        if s.log is not None
    }
    return Part(name, start.readings, readings, tally.ended, tally.begun, logs)


def logs_of(part: Part) -> LogFindings:
    """What the logs say of a part that ended with its attempt."""
    return findings_in(
        (name, line) for name, log in part.logs.items() for line in read_between(Path(log.path), log.start, log.end)
    )


def _sources(deployment: Deployment) -> list[Source]:
    return [Source(s.name, s.role, s.metrics_url) for s in deployment.servers]


def _lines(servers: Sequence[Running], sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for server in servers:
        if server.log is not None:
            for line in read_between(server.log, sizes.get(server.name, 0), size(server.log)):
                yield server.name, line
