"""A cell of the real engine behind the rig's own proxy and behind vllm-router: configs/routers.yaml, shortened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import shipped, written

ASKED = 160 + 20
"""Questions and canaries of each cell."""

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]


def test_both_routers_hand_over_and_are_compared(
    start_sweep: Callable[..., Any], tmp_path: Path, vllm_router: str
) -> None:
    data = shipped("routers.yaml")
    data["routers"]["vllm-router"]["venv"] = str(Path(vllm_router).parents[1])
    sweep = start_sweep("--limit", "160", config=written(data, tmp_path))
    code, out, err = sweep.finish().told
    assert code == 0, out + err
    results = [json.loads(path.read_text()) for path in sweep.run.glob("cells/*/cell.json")]
    cells = {cell["labels"]["router"]: cell for cell in results}
    assert cells.keys() == {None, "pdrig", "vllm-router"}
    for name in ("pdrig", "vllm-router"):
        cell = cells[name]
        assert cell["verdict"]["state"] in ("pass", "inconclusive"), (name, out)
        assert cell["accuracy"]["value"] >= 0.93 and cell["counts"]["error"] == {}, name
        proof = cell["evidence"]
        assert proof["pd_exercised"] is True and proof["transfers"] == ASKED and proof["failed"] == 0
        assert proof["local_tokens"] == ASKED, "decode computed the last token of each prompt and no more"
        assert proof["canaries"]["sent"] == 20 and proof["canaries"]["wrong"] == 0
    assert cells["pdrig"]["legs_ms"] and cells["vllm-router"]["legs_ms"] == {}
    (against,) = [c for c in cells["vllm-router"]["comparisons"] if c["baseline"] == cells["pdrig"]["cell_id"]]
    assert against["n"] == 160
    assert {ratio["metric"] for ratio in against["ratios"]} >= {"ttft_p50", "tpot_p50", "e2e_p50"}
    (pairs,) = sweep.run.glob(f"cells/{cells['vllm-router']['cell_id']}/pairs.{cells['pdrig']['cell_id']}.jsonl")
    served = {(p["prefill"], p["decode"]) for p in map(json.loads, pairs.read_text().splitlines())}
    assert served == {("prefill-0", "decode-0")}, "the ids of its answers name both"
