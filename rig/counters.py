"""Reading the engines' Prometheus counters over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx

from rig.clients import client
from rig.series import RUNNING, WAITING, Reading, block_size, parse, still_held

READ_TIMEOUT_S = 10.0
SETTLE_READS = 40
SETTLE_PAUSE_S = 0.25
"""How long counters may take to come to rest after the last answer: 40 reads, a quarter second apart."""


@dataclass(frozen=True)
class Source:
    """Where an instance's counters are."""

    instance: str
    role: str
    metrics_url: str | None


async def read_once(sources: Iterable[Source]) -> tuple[Reading, ...]:
    """Read as the engines are, in the midst of their work."""
    async with client(timeout_s=READ_TIMEOUT_S) as http:
        return await _read(http, tuple(sources))


async def read_settled(sources: Iterable[Source]) -> tuple[Reading, ...]:
    """Read until no request runs and two readings in a row agree, or the bound is reached.

    An instance that does not answer is a reading with its reason. An engine publishes a step's counts with the
    next step or log interval, so the first reading after the last answer can lag behind.
    """
    wanted = tuple(sources)
    async with client(timeout_s=READ_TIMEOUT_S) as http:
        last = await _read(http, wanted)
        for _ in range(SETTLE_READS):
            await asyncio.sleep(SETTLE_PAUSE_S)
            now = await _read(http, wanted)
            if now == last and not any(r.values.get(RUNNING) or r.values.get(WAITING) for r in now):
                return now
            last = now
    return last


async def read_idle(sources: Iterable[Source], before: Sequence[Reading], wait_s: float) -> tuple[Reading, ...]:
    """Read settled counters, again and again until no KV cache holds more than `before`, for at most `wait_s` seconds.

    The gauge is fresh on an idle engine, too: vLLM 0.32 publishes it with every step, and an engine whose connector
    still holds a finished request's blocks goes on stepping (v1/core/sched/scheduler.py, has_finished_requests).
    """
    wanted = tuple(sources)
    deadline = time.monotonic() + wait_s
    now = await read_settled(wanted)
    while still_held(before, now) and time.monotonic() < deadline:
        now = await read_settled(wanted)
    return now


async def _read(http: httpx.AsyncClient, sources: Iterable[Source]) -> tuple[Reading, ...]:
    """All instances side by side."""

    async def one(source: Source) -> Reading:
        if source.metrics_url is None:
            return Reading(source.instance, source.role, missing="no metrics address is known")
        try:
            response = await http.get(source.metrics_url)
            response.raise_for_status()
            text = response.text
            return Reading(source.instance, source.role, parse(text), block_size=block_size(text))
        except (httpx.HTTPError, ValueError) as error:
            return Reading(source.instance, source.role, missing=f"{type(error).__name__}: {error}")

    return tuple(await asyncio.gather(*map(one, sources)))
