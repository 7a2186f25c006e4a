"""Latencies and throughput of a cell over those of its baseline; pure."""

from __future__ import annotations

from collections.abc import Sequence

from evals.records import RequestRecord
from rig import stats_ratio
from rig.metrics import latency_values
from rig.records import Gates, Ratio, Slow
from rig.stats_ratio import RatioEstimate, Statistic

SHOWN: tuple[Statistic, ...] = ("p50", "p99")
THROUGHPUT = "requests_per_s"


def ratios(
    cell: Sequence[RequestRecord], base: Sequence[RequestRecord], gates: Gates, gated: bool, seed: int
) -> tuple[Ratio, ...]:
    """Ratios of ttft, tpot and e2e at p50 and p99, and of requests/s; one without enough requests is absent.

    With `gated`, those for which `gates` has a bound are tested against it.
    """
    mine, theirs = latency_values(cell), latency_values(base)
    found = []
    for name, bound in _bounds(gates).items():
        for statistic in SHOWN:
            estimate = stats_ratio.ratio(mine[name], theirs[name], statistic, seed)
            if estimate is not None:
                gate = bound if gated else None
                p_value = None if gate is None else estimate.p_above(gate)
                found.append(_ratio(f"{name}_{statistic}", estimate, len(mine[name]), len(theirs[name]), gate, p_value))
    ends, base_ends = _ends(cell), _ends(base)
    estimate = stats_ratio.throughput(ends, base_ends, seed)
    if estimate is not None:
        gate = gates.min_throughput_ratio if gated else None
        p_value = None if gate is None else estimate.p_below(gate)
        found.append(_ratio(THROUGHPUT, estimate, len(ends), len(base_ends), gate, p_value))
    return tuple(found)


def slow(cell: Sequence[RequestRecord], base: Sequence[RequestRecord], gates: Gates) -> tuple[Slow, ...]:
    """Requests beyond each bound of `gates` times the baseline's p99; none where there are too few to say."""
    mine, theirs = latency_values(cell), latency_values(base)
    found = []
    for name, factor in _bounds(gates).items():
        stalls = None if factor is None else stats_ratio.stalls(mine[name], theirs[name], factor)
        if stalls is not None and factor is not None:
            counts = (stalls.cell_slow, stalls.cell_n, stalls.base_slow, stalls.base_n)
            found.append(Slow(name, factor, stalls.limit, *counts, stalls.p_value))
    return tuple(found)


def _bounds(gates: Gates) -> dict[str, float | None]:
    return {"ttft": gates.max_ttft_ratio, "tpot": gates.max_tpot_ratio, "e2e": gates.max_e2e_ratio}


def _ends(records: Sequence[RequestRecord]) -> list[float]:
    """When questions that succeeded ended, in seconds from the first submit."""
    asked = [r for r in records if r.kind == "question"]
    begin = min((r.t_submit for r in asked), default=0.0)
    return [r.t_end - begin for r in asked if r.error is None]


def _ratio(
    metric: str, estimate: RatioEstimate, n: int, base_n: int, gate: float | None, p_value: float | None
) -> Ratio:
    return Ratio(metric, estimate.value, estimate.ci95, n, base_n, gate, p_value)
