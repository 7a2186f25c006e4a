"""Faults planted in the real engine: exactly the requests that were struck turn wrong, and the file says so live."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_sweep import demo_sweep
from tiny_sweeps import on_free_ports, written

from rig.config import load_config
from rig.deploy import launch
from rig.faults.control import ENVIRONMENT, Control, Fault, chosen, hits_path, read_hits
from rig.machine import detect_machine
from rig.plan import plan_sweep

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 24


class Faulty:
    """A prefill and a decode server that look at a control file."""

    def __init__(self, url: str, control: Path, log: Path, folder: Path) -> None:
        self.url = url
        self.control = control
        self.log = log
        self._folder = folder
        self._asked = 0

    def ask(self) -> dict[str, str]:
        """Each question's outcome, by sample id; the hits before it are forgotten."""
        hits_path(self.control).unlink(missing_ok=True)
        self._asked += 1
        out = self._folder / f"asked-{self._asked}"
        options = ["--task", "gsm-tiny", "--limit", str(QUESTIONS), "--concurrency", "8", "--out", str(out)]
        command = [sys.executable, "-m", "rig", "eval", self.url, *options]
        subprocess.run(command, cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL)
        judged = [json.loads(line) for line in (out / "judged.jsonl").read_text().splitlines()]
        return {j["sample_id"]: j["outcome"] for j in judged if j["sample_id"].startswith("gsm-tiny-")}


@pytest.fixture(scope="module")
def faulty(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("faulty")
    control = folder / "faults.json"
    data = on_free_ports(demo_sweep())
    data["cell"]["both"]["env"][ENVIRONMENT] = str(control)
    plan = plan_sweep(load_config(written(data, folder)), detect_machine())
    (cell,) = [c for c in plan.cells if c.kind == "pd"]
    (planned,) = [d for d in plan.deployments if d.id == cell.deployment]
    with asyncio.Runner() as runner:
        deployment = runner.run(launch(planned, folder / "servers", lambda _: None))
        try:
            (log,) = (folder / "servers").glob("**/decode-0*.log")
            yield Faulty(deployment.url, control, log, folder)
        finally:
            assert runner.run(deployment.stop()) == ()


def test_struck_requests_turn_wrong_and_no_others(faulty: Faulty) -> None:
    clean = faulty.ask()
    assert len(clean) == QUESTIONS
    assert read_hits(faulty.control) == []
    assert faulty.log.read_text(errors="replace").count("no fault is planted") == 1
    right = {sample for sample, outcome in clean.items() if outcome == "correct"}
    assert len(right) >= 0.9 * QUESTIONS

    for fault in (Fault("late_zeroing", 0.4, seed=1), Fault("blocks_swapped", 0.4, seed=2)):
        Control((fault,)).write(faulty.control)
        wrong = {sample for sample, outcome in faulty.ask().items() if outcome != "correct"}
        hits = read_hits(faulty.control)
        struck = {hit.sample_id for hit in hits}
        assert {hit.fault for hit in hits} == {fault.fault}
        assert struck == {sample for sample in clean if chosen(fault, sample)}
        assert wrong & right == struck & right

    Control().write(faulty.control)
    assert {sample for sample, outcome in faulty.ask().items() if outcome == "correct"} == right
    assert read_hits(faulty.control) == []
