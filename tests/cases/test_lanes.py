"""Deployments side by side, as a user asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)


def test_deployments_run_side_by_side_after_their_baseline(kit: Any, start_sweep: Any) -> None:
    wrong = kit.asked("wrong_answer", rate=0.5, when={"side": "decode"})
    sweep = kit.with_cases(kit.template(sim={"ms_per_token": 5}), {"one": [], "two": [], "red": [wrong]})
    done = start_sweep(sweep, "--parallel", "3").finish()
    assert done.code == 1, done.out + done.err
    states = {name: cell.state for name, cell in done.cells.items() if name != "baseline"}
    assert states == {"one": "pass", "two": "pass", "red": "regression"}
    at = {name: cell.deployment for name, cell in done.cells.items()}
    begun = [at[name]["started_unix"] for name in states]
    assert min(begun) > at["baseline"]["ready_unix"], "the baseline is asked first"
    assert max(begun) < min(at[name]["stopped_unix"] for name in states), "then the others beside each other"
    ports = [{p["port"] for p in at[name]["processes"].values()} for name in states]
    assert len(set.union(*ports)) == sum(map(len, ports)) == 9
    assert not done.left_running()
    assert all(f"{at[name]['id']}/decode-0: ready" in done.err for name in states), "it is said whose server it is"
    told = json.loads((done.run / "run.json").read_text())
    assert any(note.startswith("--parallel: 3 lanes") for note in told["notes"])


def test_an_interrupted_sweep_ends_all_lanes(kit: Any, start_sweep: Any) -> None:
    sweep = kit.with_cases(kit.template(), {case: [kit.silent_after(12)] for case in ("one", "two")})
    running = start_sweep({**sweep, "baseline": "none"}, "--parallel", "2")

    def both() -> bool:
        return len(list((running.folder / "runs").glob("*/cells/*/requests.jsonl"))) == 2

    kit.wait(both, running.process)
    running.process.terminate()
    ended = running.finish()
    assert ended.code == 130 and not ended.left_running()
    assert {cell.result["status"] for cell in ended.cells.values()} == {"interrupted"}
