"""Reading the engines' Prometheus counters. An absent series is None, never 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

BYTES_SUM = "vllm:nixl_bytes_transferred_sum"
BYTES_COUNT = "vllm:nixl_bytes_transferred_count"
FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"
FAILED_NOTIFICATIONS = "vllm:nixl_num_failed_notifications_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
EXTERNAL_TOKENS = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
LOCAL_TOKENS = "vllm:prompt_tokens_by_source_total{local_compute}"
CACHED_TOKENS = "vllm:prompt_tokens_by_source_total{local_cache_hit}"
SUCCESS = "vllm:request_success_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"

WATCHED = (
    BYTES_SUM,
    BYTES_COUNT,
    FAILED_TRANSFERS,
    FAILED_NOTIFICATIONS,
    EXPIRED,
    EXTERNAL_TOKENS,
    LOCAL_TOKENS,
    CACHED_TOKENS,
    SUCCESS,
    RUNNING,
    WAITING,
    KV_USAGE,
)
"""Series read of every instance; a name in braces is the value of the label `source`."""

SETTLE_READS = 40
SETTLE_PAUSE_S = 0.25
"""How long counters may take to come to rest after the last answer: 40 reads, a quarter second apart."""


@dataclass(frozen=True)
class Source:
    """Where an instance's counters are."""

    instance: str
    role: str
    metrics_url: str | None


@dataclass(frozen=True)
class Reading:
    """Counters of one instance at one moment; `missing` is why there are none at all."""

    instance: str
    role: str
    values: dict[str, float | None] = field(default_factory=dict)
    missing: str | None = None


def parse(text: str) -> dict[str, float | None]:
    """The watched series of a Prometheus exposition, summed over the other labels (data-parallel ranks)."""
    found: dict[str, float | None] = dict.fromkeys(WATCHED)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            source = sample.labels.get("source")
            name = f"{sample.name}{{{source}}}" if source is not None else sample.name
            if name in found:
                found[name] = (found[name] or 0.0) + sample.value
    return found


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
