"""Prometheus text with vLLM 0.32's series, as far as a rig reads them.

As in vLLM, a series is there with 0 from the start, and the NIXL ones only where a NIXL connector is configured
(vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py, vllm/v1/metrics/loggers.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")

_TIME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTE_BUCKETS = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))
_DESCRIPTOR_BUCKETS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0)
_LATENCY_BUCKETS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)


class Series:
    """One counter or gauge, by its extra label's value (None: no extra label)."""

    def __init__(self, name: str, kind: str, help_: str, label: str | None = None, values: Sequence[str] = ()) -> None:
        self.name, self.kind, self.help, self.label = name, kind, help_, label
        self.values: dict[str | None, float] = dict.fromkeys(values or (None,), 0.0)

    def add(self, amount: float, value: str | None = None) -> None:
        self.values[value] += amount

    def lines(self, labels: str) -> list[str]:
        sample = f"{self.name}_total" if self.kind == "counter" else self.name
        head = [f"# HELP {sample} {self.help}", f"# TYPE {sample} {self.kind}"]
        for value, number in self.values.items():
            more = f',{self.label}="{value}"' if value else ""
            head.append(f"{sample}{{{labels}{more}}} {number}")
        return head


class Histogram:
    """One histogram without extra labels."""

    def __init__(self, name: str, help_: str, buckets: Sequence[float]) -> None:
        self.name, self.help, self.buckets = name, help_, tuple(buckets)
        self.counts = [0] * (len(self.buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value

    def lines(self, labels: str) -> list[str]:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        total = 0
        for bound, count in zip((*map(str, self.buckets), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{self.name}_bucket{{{labels},le="{bound}"}} {float(total)}')
        lines.append(f"{self.name}_count{{{labels}}} {float(total)}")
        lines.append(f"{self.name}_sum{{{labels}}} {self.sum}")
        return lines


class Info:
    """Settings of the engine as labels of a gauge that is always 1; it has no model's name."""

    def __init__(self, name: str, help_: str, **settings: object) -> None:
        self.name, self.help, self.settings = name, help_, settings

    def lines(self, _: str) -> list[str]:
        labels = ",".join(f'{key}="{value}"' for key, value in {**self.settings, "engine": 0}.items())
        head = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} gauge"]
        return [*head, f"{self.name}{{{labels}}} 1.0"]


class Metrics:
    """The series of one server. Times in seconds."""

    def __init__(self, model_name: str, nixl: bool, block_size: int, offloads: bool = False) -> None:
        self._labels = f'model_name="{model_name}",engine="0"'
        self.running = Series("vllm:num_requests_running", "gauge", "Requests that are being computed.")
        self.waiting = Series("vllm:num_requests_waiting", "gauge", "Requests that wait to be computed.")
        self.kv_usage = Series("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use; 1 is all of it.")
        self.prompt_tokens = Series("vllm:prompt_tokens", "counter", "Prompt tokens processed.")
        self.by_source = Series(
            "vllm:prompt_tokens_by_source", "counter", "Prompt tokens by where they came from.", "source", SOURCES
        )
        self.generation_tokens = Series("vllm:generation_tokens", "counter", "Tokens generated.")
        self.success = Series(
            "vllm:request_success", "counter", "Requests that ended, by reason.", "finished_reason", FINISH_REASONS
        )
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "Time to the first token.", _LATENCY_BUCKETS)
        self.e2e = Histogram("vllm:e2e_request_latency_seconds", "Time of a whole request.", _LATENCY_BUCKETS)
        self.xfer_time = Histogram("vllm:nixl_xfer_time_seconds", "Time of a NIXL transfer.", _TIME_BUCKETS)
        self.post_time = Histogram(
            "vllm:nixl_post_time_seconds", "Time to post a NIXL transfer.", (0.001, *_TIME_BUCKETS)
        )
        self.bytes = Histogram("vllm:nixl_bytes_transferred", "Bytes of a NIXL transfer.", _BYTE_BUCKETS)
        self.descriptors = Histogram(
            "vllm:nixl_num_descriptors", "Descriptors of a NIXL transfer.", _DESCRIPTOR_BUCKETS
        )
        self.failed = Series("vllm:nixl_num_failed_transfers", "counter", "NIXL transfers that failed.")
        self.failed_notes = Series("vllm:nixl_num_failed_notifications", "counter", "Notifications that failed.")
        self.expired = Series("vllm:nixl_num_kv_expired_reqs", "counter", "Requests whose KV lease ran out.")
        self.late_notes = Series(
            "vllm:nixl_num_notifications_after_expiry", "counter", "Notifications for requests no longer held."
        )
        self.loaded = Series("vllm:kv_offload_load_bytes", "counter", "Bytes loaded from the offload storage.")
        self._series: list[Series | Histogram | Info] = [
            Info("vllm:cache_config_info", "Settings of the KV cache.", block_size=block_size),
            self.running,
            self.waiting,
            self.kv_usage,
            self.prompt_tokens,
            self.by_source,
            self.generation_tokens,
            self.success,
            self.ttft,
            self.e2e,
        ]
        if offloads:
            self._series.append(self.loaded)
        if nixl:
            self._series += [self.xfer_time, self.post_time, self.bytes, self.descriptors]
            self._series += [self.failed, self.failed_notes, self.expired, self.late_notes]

    def transfer(self, size: int, blocks: int, seconds: float, ranks: int) -> None:
        """Count one request's transfer of `size` bytes: one a tensor-parallel rank, as NIXL does."""
        for _ in range(ranks):
            self.xfer_time.observe(seconds)
            self.post_time.observe(seconds / 10)
            self.bytes.observe(size / ranks)
            self.descriptors.observe(blocks)

    def text(self) -> str:
        return "\n".join(line for series in self._series for line in series.lines(self._labels)) + "\n"
