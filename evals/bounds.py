"""Numbers that make sense, where users give them: beyond is a slip of the hand, and would eat the memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BOUNDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "limit": (1, 1_000_000),
        "shots": (0, 1000),
        "max_tokens": (1, 10_000_000),
        "concurrency": (1, 100_000),
        "warmup": (0, 100_000),
        "retries": (0, 5),
    }
)
"""The least and the most of what is asked, and how hard."""
