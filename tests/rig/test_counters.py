"""Counters are read until the engines rest and have given their KV cache back, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rig import counters
from rig import series as c
from rig.counters import Source, read_idle
from rig.series import Reading

SOURCES = [Source("decode-0", "decode", "http://decode/metrics")]


def reading(usage: float | None) -> Reading:
    return Reading("decode-0", "decode", {c.KV_USAGE: usage, c.RUNNING: 0.0, c.WAITING: 0.0})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What the gauge shows, one settled reading after the other; the last one stays."""
    shown: list[float | None] = []

    async def settled(sources: Sequence[Source]) -> tuple[Reading, ...]:
        assert list(sources) == SOURCES
        return (reading(shown.pop(0) if len(shown) > 1 else shown[0]),)

    monkeypatch.setattr(counters, "read_settled", settled)
    return shown


def usage(before: float | None, wait_s: float) -> float | None:
    [last] = asyncio.run(read_idle(SOURCES, [reading(before)], wait_s))
    return last.values[c.KV_USAGE]


def test_a_clean_engine_is_read_once(reads: list[float | None]) -> None:
    reads += [0.0, 9.0]
    assert usage(0.0, wait_s=3600) == 0 and reads == [9.0]


def test_blocks_on_lease_are_waited_for(reads: list[float | None]) -> None:
    reads += [0.5, 0.25, 0.0, 9.0]
    assert usage(0.0, wait_s=3600) == 0 and reads == [9.0]


def test_what_was_held_before_is_not_waited_for(reads: list[float | None]) -> None:
    reads += [0.5, 9.0]
    assert usage(0.5, wait_s=3600) == 0.5


def test_what_stays_is_shown(reads: list[float | None]) -> None:
    reads += [0.5]
    assert usage(0.0, wait_s=0) == 0.5


@pytest.mark.parametrize("before", [None, 0.0])
def test_a_missing_gauge_is_not_waited_for(reads: list[float | None], before: float | None) -> None:
    reads += [None if before == 0 else 0.5]
    assert usage(before, wait_s=3600) == reads[0]


def test_an_instance_that_is_left_out_is_not_waited_for(reads: list[float | None]) -> None:
    reads += [0.5]
    [last] = asyncio.run(read_idle(SOURCES, [], wait_s=3600))
    assert last.values[c.KV_USAGE] == 0.5


def test_shares_are_compared_by_instance() -> None:
    before = [reading(0.25), Reading("prefill-0", "prefill", {c.KV_USAGE: 0.0})]
    after = [
        reading(0.25),
        Reading("prefill-0", "prefill", {c.KV_USAGE: 0.125}),
        Reading("new", "decode", {c.KV_USAGE: 1}),
    ]
    assert c.still_held(before, after) == {"prefill-0": 0.125}
    assert c.still_held(after, before) == {}
