"""A load that is watched: whoever stops it is not kept waiting."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from evals.records import RequestRecord
from rig.cell import _Watch
from rig.deploy.deployment import Deployment
from rig.errors import DeployError


class Sound:
    """A deployment that never fails."""

    async def wait_failed(self) -> DeployError:
        await asyncio.Event().wait()
        raise AssertionError

    async def lost(self) -> DeployError | None:
        return None


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_is_heard_in_the_moment_of_an_answer(turns: int, make_record: Any) -> None:
    """However many turns of the loop lie between the two; a wait for the next answer once went on for `hang_s`."""
    record: RequestRecord = make_record("q1")
    watch = _Watch(cast(Deployment, Sound()), hang_s=3600)
    begun = asyncio.Event()

    async def load() -> None:
        begun.set()
        await asyncio.Event().wait()

    asked = asyncio.create_task(watch.over(load(), asyncio.Event()))
    await begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    watch.seen(record)
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.cancel()
    done, _ = await asyncio.wait({asked}, timeout=30)
    assert done and asked.cancelled()
