"""The demo sweep on the real engine, as a user runs it; and what happens when decode is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_models import keep

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "tiny_hybrid.yaml"

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]


def cell_results(run: Path) -> dict[str, dict[str, Any]]:
    return {p.parent.name: json.loads(p.read_text()) for p in run.glob("cells/*/cell.json")}


def test_the_demo_passes(start_sweep: Callable[..., Any]) -> None:
    sweep = start_sweep()
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 0, err
    cells = cell_results(sweep.run)
    assert len(cells) == 4
    for cell_id, cell in cells.items():
        assert cell["accuracy"]["value"] >= 0.93, cell_id
        if cell["kind"] == "pd":
            assert cell["verdict"]["state"] == "pass", (cell_id, out)
            assert cell["evidence"]["pd_exercised"] is True
            assert cell["counts"]["error"] == {}


def test_a_killed_decode_fails_its_cell_and_the_others_run(start_sweep: Callable[..., Any]) -> None:
    sweep = start_sweep("--cell", "*tp1-tp1*", "--limit", "160")
    assert sweep.process.stderr is not None
    said = []
    pids: list[int] = []
    for line in sweep.process.stderr:
        said.append(line)
        if not pids and "1p1d-tp1-tp1-async-on" in line and "accuracy" in line and "/160" in line:
            (record,) = sweep.run.glob("deployments/*1p1d-tp1-tp1-async-on*/deployment.json")
            processes = json.loads(record.read_text())["processes"]
            pids = [p["process"]["pid"] for p in processes.values()]
            os.kill(processes["decode-0"]["process"]["pid"], signal.SIGKILL)
    code, out, _ = sweep.finish().told
    assert pids, "".join(said)
    cells = cell_results(sweep.run)
    states = {i: c["verdict"]["state"] if c["verdict"] else None for i, c in cells.items()}
    (dead,) = [i for i in cells if "1p1d-tp1-tp1-async-on" in i]
    (other,) = [i for i in cells if "1p1d-tp1-tp1-async-off" in i]
    assert states[dead] == "failed"
    assert "decode-0" in str(cells[dead]["failure"])
    assert states[other] == "pass", out
    assert code == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
