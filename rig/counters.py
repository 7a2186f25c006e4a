"""Reading the engines' Prometheus counters over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from rig.series import RUNNING, WAITING, Reading, parse

SETTLE_READS = 40
SETTLE_PAUSE_S = 0.25
"""How long counters may take to come to rest after the last answer: 40 reads, a quarter second apart."""


@dataclass(frozen=True)
class Source:
    """Where an instance's counters are."""

    instance: str
    role: str
    metrics_url: str | None


async def read(sources: Iterable[Source], timeout_s: float = 10) -> tuple[Reading, ...]:
    """Read all instances side by side; one that does not answer is a reading with its reason."""

    async def one(client: httpx.AsyncClient, source: Source) -> Reading:
        if source.metrics_url is None:
            return Reading(source.instance, source.role, missing="no metrics address is known")
        try:
            response = await client.get(source.metrics_url)
            response.raise_for_status()
            return Reading(source.instance, source.role, parse(response.text))
        except (httpx.HTTPError, ValueError) as error:
            return Reading(source.instance, source.role, missing=f"{type(error).__name__}: {error}")

    async with httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
        return tuple(await asyncio.gather(*(one(client, source) for source in sources)))


async def read_settled(sources: Iterable[Source]) -> tuple[Reading, ...]:
    """Read until no request runs and two readings in a row agree, or the bound is reached.

    An engine publishes a step's counts with the next step or log interval, so the first reading after the
    last answer can lag behind.
    """
    wanted = tuple(sources)
    last = await read(wanted)
    for _ in range(SETTLE_READS):
        await asyncio.sleep(SETTLE_PAUSE_S)
        now = await read(wanted)
        if now == last and not any(r.values.get(RUNNING) or r.values.get(WAITING) for r in now):
            return now
        last = now
    return last
