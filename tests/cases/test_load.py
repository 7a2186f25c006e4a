"""Case 16: many requests at once. Each has a record and one class, and no connection is lost by the rig's doing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from evals.sink import read_records
from rig.deploy import launch

SMALL = pytest.param(2_000, 500)
LARGE = pytest.param(20_000, 1_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.parametrize(("requests", "concurrency"), [SMALL, LARGE])
async def test_case_16_every_request_has_one_record(kit: Any, tmp_path: Path, requests: int, concurrency: int) -> None:
    sweep = kit.template(sim={"max_num_seqs": 4096})
    # A machine that is this busy may take longer than a short lease to go from prefill to decode.
    sweep["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": 600}
    ledger, out = tmp_path / "ledger.jsonl", tmp_path / "out"
    sweep["engines"]["sim"]["env"]["PDRIG_SIM_LEDGER"] = str(ledger)
    plan = next(d for d in kit.planned(sweep, tmp_path).deployments if d.kind == "pd")
    deployment = await launch(plan, tmp_path / "deployment", lambda event: None)
    try:
        options = ("--task", "gsm-tiny", "--shots", "0", "--limit", str(requests), "--concurrency", str(concurrency))
        command = [sys.executable, "-m", "rig", "eval", deployment.url, *options, "--out", str(out)]
        pipe = asyncio.subprocess.PIPE
        done = await asyncio.create_subprocess_exec(*command, cwd=kit.root, env=kit.clean_env(), stderr=pipe)
        _, said = await done.communicate()
        await deployment.flush_legs()
    finally:
        assert not await deployment.stop()
    assert done.returncode == 0, said.decode()
    records = read_records(out / "requests.jsonl").records
    assert len(records) == len({record.sample_id for record in records}) == requests
    assert [record.error for record in records if record.error] == []
    judged = kit.rows(out / "judged.jsonl")
    ids = {record.request_id for record in records}
    assert {row["request_id"] for row in judged} == ids and len(judged) == requests
    assert {row["outcome"] for row in judged} == {"correct"}
    told = [row for row in kit.rows(ledger) if kit.client_id(row["request_id"]) in ids]
    for side in ("prefill", "decode"):
        mine = [row for row in told if row["side"] == side]
        assert len(mine) == requests and {row["outcome"] for row in mine} == {"answered"}
    assert deployment.legs
    legs = [leg for leg in kit.rows(deployment.legs) if leg["request_id"] in ids]
    assert len(legs) == 2 * requests and not any(leg["error"] for leg in legs)


def test_case_16_a_limit_of_this_machine_is_no_fault_of_the_deployment(kit: Any, start_sweep: Any) -> None:
    """With too few open files for the load, the cell is invalid through the rig, not a regression."""
    sweep = kit.template(task={"limit": 300, "concurrency": 300, "shots": 0}, sim={"prefill_ms": 300})
    few = ("prlimit", "--nofile=100:100")
    done = start_sweep({**sweep, "baseline": "none"}, before=few).finish()
    assert done.code == 3, done.out + done.err
    cell = done.cells["none"]
    assert (cell.state, cell.channels[0]) == ("invalid", "rig") and len(cell.records) == 300
    own = [record for record in cell.records if record.error and record.error.error_class == "internal"]
    assert own and {record.error.leg for record in own if record.error} <= {"client", "proxy"}
    assert f"internal {len(own)}" in cell.why or "through the rig's own fault" in cell.why
    assert not any(row["outcome"] == "wrong" for row in cell.judged.values())
