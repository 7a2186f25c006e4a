"""Sweeps that are killed in the midst of a cell and gone on with: what is kept, what is asked again, what is ended."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rig.faults.control import ENVIRONMENT, Control, Fault

pytestmark = pytest.mark.timeout(600)
"""The first tests wait for sweeps that are killed and made again."""

SLOW = {"ms_per_token": 12}
QUESTIONS = 120
STRUCK_BY = 90
"""Requests of decode after which it says nothing, until the sweep is gone on with."""
ORPHAN = {"fault": "orphan_child", "params": {"lifetime_s": 1000}}
"""An engine that leaves its server's session and lives on without it, as vLLM's has been seen to."""


@dataclass
class Story:
    """A sweep that was killed, what was on disk then, who lived on, and the same sweep resumed."""

    dead: Any
    part: dict[str, Any]
    on_disk: dict[str, Any]
    alive: set[int]
    again: Any = None


def parts_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["parts"]) if path.exists() else []


def cell_of(run: Path, kind: str = "1p1d", tail: str = "") -> Path:
    (found,) = (p for p in run.glob(f"cells/*-{kind}-*{tail}") if p.name.endswith(tail))
    return found


def wait_for_part(kit: Any, running: Any, least: int) -> None:
    """Until a reading in the midst of the P/D cell speaks for so many records."""

    def enough() -> bool:
        found = list((running.folder / "runs").glob("*/cells/*-1p1d-*/readings.json"))
        parts = parts_of(found[0]) if found else []
        return bool(parts) and len(parts[-1]["ended"]) >= least

    kit.wait(enough, running.process)


def kill(kit: Any, running: Any, guards_too: bool) -> Story:
    """SIGKILL to the rig; with `guards_too` to its guards before, so that nobody ends the engines."""
    if guards_too:
        running.process.send_signal(signal.SIGSTOP)
        for path in (running.folder / "runs").glob("*/deployments/*/deployment.json"):
            for process in json.loads(path.read_text())["processes"].values():
                if kit.alive(process["guard"]["pid"]):
                    os.kill(process["guard"]["pid"], signal.SIGKILL)
    running.process.kill()
    dead = running.finish()
    if not guards_too:
        kit.wait_gone(dead.processes())
    cell = cell_of(dead.run)
    on_disk = {row["request_id"]: row for row in kit.rows(cell / "requests.jsonl") if row["kind"] != "warmup"}
    return Story(dead, parts_of(cell / "readings.json")[-1], on_disk, dead.left_running())


def slow_pd(kit: Any, faults: Path, **task: Any) -> dict[str, Any]:
    """A sweep whose P/D cell takes its time, and whose baseline does not; engines read `faults` when they start."""
    sweep = dict(kit.template({"limit": QUESTIONS, **task}, SLOW))
    sweep["baseline"]["monolithic"]["env"]["PDRIG_SIM_CONFIG"] = json.dumps({"max_num_seqs": 64})
    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = str(faults)
    sweep["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": 600}
    return sweep


def killed_and_resumed(kit: Any, start_sweep: Any, faults: Path, guards_too: bool) -> Story:
    faults.write_text(json.dumps([ORPHAN, kit.silent_after(STRUCK_BY)]))
    running = start_sweep(slow_pd(kit, faults, warmup=2))
    wait_for_part(kit, running, 8)
    story = kill(kit, running, guards_too)
    faults.write_text(json.dumps([ORPHAN]))
    story.again = start_sweep(None, "--resume", str(story.dead.run), again=story.dead).finish()
    return story


def red_and_resumed(kit: Any, start_sweep: Any, held: Path) -> Story:
    """Killed within the repetition of a red cell, of which some hand-offs never end: `held` is their control file."""
    sweep = kit.with_cases(
        kit.template({"limit": QUESTIONS}, SLOW),
        {"red": [kit.asked("wrong_answer", rate=0.5, when={"side": "decode"})]},
    )
    sweep["cell"]["both"]["env"][ENVIRONMENT] = str(held)
    sweep["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": 600}
    Control().write(held)
    running = start_sweep({**sweep, "rerun": True})
    kit.wait(lambda: list((running.folder / "runs").glob("*/cells/*.rerun/requests.jsonl")), running.process)
    Control((Fault("slow_transfer", 0.1, params={"ms": 1e6}),)).write(held)

    def begun() -> bool:
        found = list((running.folder / "runs").glob("*/cells/*.rerun/readings.json"))
        parts = parts_of(found[0]) if found else []
        return bool(parts) and len(parts[-1]["ended"]) >= 8

    kit.wait(begun, running.process)
    running.process.kill()
    dead = running.finish()
    kit.wait_gone(dead.processes())
    Control().write(held)
    again = start_sweep(None, "--resume", str(dead.run), again=dead).finish()
    return Story(dead, {}, {}, set(), again=again)


def resumed_elsewhere(kit: Any, start_sweep: Any, faults: Path) -> Story:
    """Resumed with another variable in the environment of the servers."""
    faults.write_text(json.dumps([kit.silent_after(STRUCK_BY)]))
    running = start_sweep(slow_pd(kit, faults))
    wait_for_part(kit, running, 8)
    story = kill(kit, running, guards_too=False)
    faults.write_text("[]")
    changed = {"UCX_TLS": "tcp"}
    story.again = start_sweep(None, "--resume", str(story.dead.run), again=story.dead, env=changed).finish()
    return story


@pytest.fixture(scope="module")
def stories(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    faults = tmp_path_factory.mktemp("faults")
    with ThreadPoolExecutor(2) as pool:
        yield {
            "all": pool.submit(killed_and_resumed, kit, start_sweep, faults / "all.json", False),
            "rig": pool.submit(killed_and_resumed, kit, start_sweep, faults / "rig.json", True),
            "red": pool.submit(red_and_resumed, kit, start_sweep, faults / "held.json"),
            "elsewhere": pool.submit(resumed_elsewhere, kit, start_sweep, faults / "elsewhere.json"),
            "whole": pool.submit(lambda: start_sweep(kit.template({"limit": QUESTIONS, "warmup": 2})).finish()),
        }


@pytest.mark.parametrize("name", ["all", "rig"])
def test_only_what_has_no_proof_is_asked_again(kit: Any, stories: Any, name: str) -> None:
    story: Story = stories[name].result()
    again = story.again
    assert again.code == 0, again.out + again.err
    cell = again.cells["none"]
    proved = set(story.part["ended"])
    asked = Counter((r.kind, r.sample_id, r.repeat) for r in cell.records if r.kind != "warmup")
    assert set(asked.values()) == {1} and sum(kind == "question" for kind, _, _ in asked) == QUESTIONS
    assert proved <= cell.ids, "what its last reading speaks for is kept"
    assert proved == story.on_disk.keys() & cell.ids, "and what came after that reading is asked again"
    kept = {row["request_id"]: row for row in kit.rows(cell.folder / "requests.jsonl")}
    assert all(kept[i] == story.on_disk[i] for i in proved), "no record is changed"
    assert {r["request_id"] for r in kit.rows(cell.folder / "requests.1.jsonl")} >= story.on_disk.keys()
    resumed = cell.result["resumed"]
    assert (resumed["kept"], resumed["again"]) == (len(proved), len(story.on_disk) - len(proved))
    assert f"gone on with, {len(proved)} answers are kept" in again.err
    told = json.loads((again.run / "run.json").read_text())["notes"]
    assert any(f"gone on with, {len(proved)} answers are kept" in note for note in told), "reports show it"


@pytest.mark.parametrize("name", ["all", "rig"])
def test_the_result_is_that_of_an_undisturbed_sweep(stories: Any, name: str) -> None:
    again, whole = stories[name].result().again, stories["whole"].result()
    assert whole.code == again.code == 0
    for case in ("none", "baseline"):
        mine, its = again.cells[case].result, whole.cells[case].result
        for key in ("status", "accuracy", "counts"):
            assert mine[key] == its[key], (case, key)
    mine, its = again.cells["none"].result, whole.cells["none"].result
    assert mine["verdict"]["state"] == its["verdict"]["state"] == "pass"
    (ours,), (theirs,) = mine["comparisons"], its["comparisons"]
    assert [ours[k] for k in ("b", "c", "n", "delta")] == [theirs[k] for k in ("b", "c", "n", "delta")]
    assert (mine["evidence"]["canaries"], mine["warmup_requests"]) == (its["evidence"]["canaries"], 2)


@pytest.mark.parametrize("name", ["all", "rig"])
def test_each_part_is_proved_by_its_own_launch(stories: Any, name: str) -> None:
    story: Story = stories[name].result()
    cell = story.again.cells["none"]
    proof = cell.result["evidence"]
    assert proof["pd_exercised"] is True
    asked = sum(r.kind != "warmup" for r in cell.records)
    assert asked <= proof["transfers"] <= asked + story.part["begun"] - len(story.part["ended"])
    assert any("of an attempt that was cut short" in f["text"] for f in proof["findings"])
    assert cell.result["resumed"]["deployments"] == [story.part["deployment"]] != [cell.result["deployment"]]


@pytest.mark.parametrize("name", ["all", "rig"])
def test_speed_is_that_of_the_last_attempt(stories: Any, name: str) -> None:
    story: Story = stories[name].result()
    cell = story.again.cells["none"]
    new = [r for r in cell.records if r.kind == "question" and r.request_id not in story.on_disk]
    assert all(r.t_submit >= cell.result["resumed"]["since_s"] for r in new)
    took = max(r.t_end for r in new) - min(r.t_submit for r in new)
    assert cell.result["throughput"]["duration_s"] == pytest.approx(took)
    kept = [r for r in cell.records if r.request_id in story.on_disk]
    assert max(r.t_end for r in kept) < min(r.t_submit for r in new), "one clock goes on through both"


def test_nothing_of_the_killed_sweep_runs_on(kit: Any, stories: Any) -> None:
    story: Story = stories["rig"].result()
    assert story.alive, "without rig and guards the engines live on"
    assert not {pid for pid in story.alive if kit.alive(pid)} and not story.again.left_running()
    for server in ("prefill-0", "decode-0"):
        assert f"/{server}: pid " in story.again.err, "it is said what was ended"
        told = json.loads((story.again.run / "run.json").read_text())["notes"]
        assert any("ended what was left running: " in note and f"/{server}: pid " in note for note in told)
    assert not stories["all"].result().alive and "left running" not in stories["all"].result().again.err


def test_a_red_cell_whose_repetition_was_cut_short(stories: Any) -> None:
    again = stories["red"].result().again
    assert again.code == 1, again.out + again.err
    red = next(cell for name, cell in again.by_id.items() if name.endswith(".rerun"))
    assert red.state == "regression" and red.result["resumed"]["kept"] >= 8
    assert red.result["rerun_of"] and "it came out the same" in again.by_id[red.result["rerun_of"]].why


def test_another_deployment_starts_the_cell_over(stories: Any) -> None:
    story: Story = stories["elsewhere"].result()
    cell = story.again.cells["none"]
    assert story.again.code == 0 and cell.result["resumed"] is None
    assert not cell.ids & story.on_disk.keys()
    assert "starts over, its deployment differs now: environment: UCX_TLS was not set, now tcp" in story.again.err
