"""The state before and after an evaluation: readings of both, and what the logs say of the time between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rig import observing
from rig import series as c
from rig.counters import Source
from rig.deploy.deployment import Running
from rig.observing import GRACE_S, end_of, start_of
from rig.planned import DeploymentPlan
from rig.series import Reading

ID = "0123456789abcdef"
EXPIRED = (
    "Releasing expired KV blocks for request cmpl-{}-0-0a1b2c3d which were retrieved by 0 remote worker(s) before.\n"
)
LATE = "Potentially invalid KV blocks for unrecognized request cmpl-{}-0-0a1b2c3d were retrieved by a decode worker.\n"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], float]]:
    """Which instances were waited for, and how long at most."""
    seen: list[tuple[list[str], float]] = []

    async def settled(sources: Sequence[Source]) -> tuple[Reading, ...]:
        return tuple(Reading(s.instance, s.role, {c.KV_USAGE: 0.0}) for s in sources)

    async def idle(sources: Sequence[Source], before: Sequence[Reading], wait_s: float) -> tuple[Reading, ...]:
        seen.append(([r.instance for r in before], wait_s))
        return tuple(Reading(s.instance, s.role, {c.KV_USAGE: 0.5}) for s in sources)

    monkeypatch.setattr(observing, "read_settled", settled)
    monkeypatch.setattr(observing, "read_idle", idle)
    return seen


def deployment(folder: Path, config: dict[str, Any], logs: bool = True) -> Any:
    servers = tuple(
        Running(f"{role}-0", role, "", "", folder / f"{role}.log" if logs else None, None, None, None)
        for role in ("prefill", "decode")
    )
    plan = DeploymentPlan("d", "pd", "local", "m", config.get("kv_connector"), kv_transfer=config)
    return SimpleNamespace(servers=servers, plan=plan)


def test_only_the_lines_between_count(tmp_path: Path, waits: list[Any]) -> None:
    up = deployment(tmp_path, {"kv_connector": "NixlConnector"})
    log = tmp_path / "prefill.log"
    log.write_text(EXPIRED.format(f"q0-{ID}") + LATE.format(f"q0-{ID}"))

    async def evaluate() -> observing.Observed:
        start = await start_of(up)
        with log.open("a") as file:
            file.write(EXPIRED.format(f"q1-{ID}") + LATE.format(f"q1-{ID}"))
        return await end_of(up, start)

    seen = asyncio.run(evaluate())
    assert seen.logs.taints == {f"q1-{ID}": ("expired_lease", "stale_blocks")}
    assert [r.values[c.KV_USAGE] for r in (*seen.before, *seen.after)] == [0.0, 0.0, 0.5, 0.5]
    assert waits == [(["prefill-0", "decode-0"], 30 + GRACE_S)]


def test_decode_that_keeps_blocks_is_not_waited_for(tmp_path: Path, waits: list[Any]) -> None:
    extra = {"bidirectional_kv_xfer": True, "kv_lease_duration": 7}
    up = deployment(tmp_path, {"kv_connector": "NixlConnector", "kv_connector_extra_config": extra})

    async def evaluate() -> observing.Observed:
        return await end_of(up, await start_of(up))

    assert asyncio.run(evaluate()).logs.findings == ()
    assert waits == [(["prefill-0"], 7 + GRACE_S)]


def test_a_log_that_is_not_at_hand_is_said_to_be_missing(tmp_path: Path, waits: list[Any]) -> None:
    up = deployment(tmp_path, {}, logs=False)

    async def evaluate() -> observing.Observed:
        return await end_of(up, await start_of(up))

    texts = [f.text for f in asyncio.run(evaluate()).logs.findings]
    assert len(texts) == 2 and texts[0].startswith("the log of prefill-0 is not at hand")
    assert waits[0][1] == GRACE_S
