"""Which Prometheus series of the engines are watched, and a reading of them. Absent is None, never 0. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

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
