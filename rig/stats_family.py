"""The error rate of several tests, spent once over all of them; pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Holm's adjusted p-values, under the keys and in the order given; equal p-values get equal ones.

    Rejecting where the adjusted value is at most alpha keeps the chance of any false rejection at most alpha,
    however the tests depend on each other. Raises ValueError for a p-value outside [0, 1]. Source: Holm 1979,
    Scandinavian Journal of Statistics 6, 65-70.
    """
    _check(p_values.values())
    adjusted: dict[K, float] = {}
    largest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, bonferroni(p, len(p_values) - rank))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


def bonferroni(p: float, m: int) -> float:
    """The p-value of one of m tests, corrected for all of them: m p, at most 1."""
    _check((p,))
    return min(1.0, m * p)


def _check(p_values: Iterable[float]) -> None:
    for p in p_values:
        if not 0 <= p <= 1:
            raise ValueError(f"a p-value lies between 0 and 1, not {p}")
