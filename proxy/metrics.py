"""The proxy's own counters, for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROC_ENV = "PROMETHEUS_MULTIPROC_DIR"
"""Where several worker processes keep their numbers, so that any of them can show the sum."""

LEG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HANDOFF_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)


class Metrics:
    """One registry for each app. `handoff` is the time between prefill's last byte and the decode leg's start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pdrig_proxy_requests", "Requests by how they ended.", ["endpoint", "outcome"], registry=self.registry
        )
        self.errors = Counter("pdrig_proxy_errors", "Failed requests.", ["leg", "class"], registry=self.registry)
        self.retries = Counter(
            "pdrig_proxy_retries",
            "Hand-offs begun again because a reused connection was closed before it answered.",
            ["leg"],
            registry=self.registry,
        )
        self.lenient = Counter(
            "pdrig_proxy_lenient", "Requests let through to decode without KV parameters.", registry=self.registry
        )
        self.in_flight = Gauge(
            "pdrig_proxy_in_flight", "Requests now.", registry=self.registry, multiprocess_mode="livesum"
        )
        self.leg_seconds = Histogram(
            "pdrig_proxy_leg_seconds",
            "From sending a leg to its last byte.",
            ["leg", "instance"],
            buckets=LEG_BUCKETS,
            registry=self.registry,
        )
        self.handoff_seconds = Histogram(
            "pdrig_proxy_handoff_seconds",
            "From prefill's last byte to sending the decode leg.",
            buckets=HANDOFF_BUCKETS,
            registry=self.registry,
        )

        # To find a series by its labels takes longer than to count in it.
        self._legs: dict[str, Histogram] = {}
        self._ends: dict[tuple[str, str], Counter] = {}

    def request_ended(self, endpoint: str, outcome: str) -> None:
        series = self._ends.get((endpoint, outcome))
        if series is None:
            series = self._ends[endpoint, outcome] = self.requests.labels(endpoint, outcome)
        series.inc()

    def leg_ended(self, role: str, instance: str, seconds: float) -> None:
        series = self._legs.get(instance)
        if series is None:
            series = self._legs[instance] = self.leg_seconds.labels(role, instance)
        series.observe(seconds)

    def text(self) -> bytes:
        """The exposition; over all workers where there are several."""
        if os.environ.get(MULTIPROC_ENV):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        return generate_latest(self.registry)
