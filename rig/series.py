"""Which Prometheus series of the engines are watched, and a reading of them. Absent is None, never 0. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

BYTES_SUM = "vllm:nixl_bytes_transferred_sum"
BYTES_COUNT = "vllm:nixl_bytes_transferred_count"
FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"
FAILED_NOTIFICATIONS = "vllm:nixl_num_failed_notifications_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
LATE_READS = "vllm:nixl_num_notifications_after_expiry_total"
OFFLOAD_LOADED = "vllm:kv_offload_load_bytes_total"
OFFLOAD_STORED = "vllm:kv_offload_store_bytes_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
EXTERNAL_TOKENS = "vllm:prompt_tokens_by_source_total{external_kv_transfer}"
LOCAL_TOKENS = "vllm:prompt_tokens_by_source_total{local_compute}"
CACHED_TOKENS = "vllm:prompt_tokens_by_source_total{local_cache_hit}"
GENERATED = "vllm:generation_tokens_total"
SUCCESS = "vllm:request_success_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
SHARE_RESOLUTION = 1e-6
"""Shares of the KV cache that differ by less are equal: less than a block of a cache of a million."""

WATCHED = (
    BYTES_SUM,
    BYTES_COUNT,
    FAILED_TRANSFERS,
    FAILED_NOTIFICATIONS,
    EXPIRED,
    LATE_READS,
    OFFLOAD_LOADED,
    OFFLOAD_STORED,
    DRAFTS,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
    EXTERNAL_TOKENS,
    LOCAL_TOKENS,
    CACHED_TOKENS,
    GENERATED,
    SUCCESS,
    RUNNING,
    WAITING,
    KV_USAGE,
)
"""Series read of every instance; a name in braces is the value of the label `source`."""

GAUGES = (RUNNING, WAITING, KV_USAGE)
"""Those of WATCHED that may go down."""


@dataclass(frozen=True)
class Reading:
    """Counters of one instance at one moment; `missing` is why there are none at all.

    `block_size` is the tokens of a block of its KV cache.
    """

    instance: str
    role: str
    values: dict[str, float | None] = field(default_factory=dict)
    missing: str | None = None
    block_size: int | None = None


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


def block_size(text: str) -> int | None:
    """Tokens a block of the KV cache holds, by the exposition of an engine; None where it says nothing, or two things.

    vLLM's label is the smallest block of the groups of layers whose blocks can be shared by prefix, as the workers
    settled it: a hybrid model's is the attention layers' (vllm/v1/engine/core.py, `_initialize_kv_caches`), in tokens
    of one rank of decode context parallelism.
    """
    lines = "\n".join(line for line in text.splitlines() if line.startswith(CACHE_CONFIG))
    found = {
        sample.labels.get("block_size", "")
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
    }
    said = found.pop() if len(found) == 1 else ""
    return int(said) if said.isdecimal() and int(said) > 0 else None


def still_held(before: Sequence[Reading], after: Sequence[Reading]) -> dict[str, float]:
    """By instance, the share of the KV cache that is in use after a run and was not before; 1 is all of it.

    Instances whose gauge is missing on either side are left out: nothing is known of them. Data-parallel ranks are
    summed.
    """
    start = {reading.instance: reading.values.get(KV_USAGE) for reading in before}
    held = {}
    for reading in after:
        old, new = start.get(reading.instance), reading.values.get(KV_USAGE)
        if old is not None and new is not None and new - old > SHARE_RESOLUTION:
            held[reading.instance] = new - old
    return held
