"""Processes that die, are killed, are in the way, or are not the rig's: cases 13, 21 and 23, and the rig's own end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

TERMINAL = str(Path(__file__).parents[1] / "support" / "terminal.py")
SLOW = {"ms_per_token": 12}
"""Answers of a third of a second, so that whoever strikes finds some under way."""
STRUCK_BY = 32
"""Requests of decode after which it says nothing, of the 40 and more that it would get."""


@dataclass
class Resumed:
    """A sweep that was killed, what was on disk then, and the same sweep resumed."""

    dead: Any
    on_disk: dict[str, Any]
    ledger: list[Any]
    baseline: dict[str, bytes]
    again: Any


@pytest.fixture(scope="module")
def stories(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """Sweeps that come to grief, side by side."""
    faults = tmp_path_factory.mktemp("faults") / "faults.json"
    with ThreadPoolExecutor() as pool:
        yield {
            "engine": pool.submit(kill_decode, kit, start_sweep),
            "SIGINT": pool.submit(interrupt, kit, start_sweep, signal.SIGINT),
            "SIGTERM": pool.submit(interrupt, kit, start_sweep, signal.SIGTERM),
            "SIGHUP": pool.submit(interrupt, kit, start_sweep, signal.SIGHUP),
            "terminal": pool.submit(interrupt, kit, start_sweep, signal.SIGHUP, sys.executable, TERMINAL),
            "rig": pool.submit(kill_rig, kit, start_sweep, faults),
        }


def kill_decode(kit: Any, start_sweep: Any) -> Any:
    """A sweep of two cells; decode's API server is killed in the first, which has an engine that lives on."""
    orphan = {"fault": "orphan_child", "params": {"lifetime_s": 1000}}
    sweep = kit.with_cases(kit.template(sim=SLOW), {"21 killed": [orphan, kit.silent_after(STRUCK_BY)], "next": []})
    running = start_sweep({**sweep, "baseline": "none"})
    kit.wait(lambda: len(running.records_so_far("pd")) >= 8, running.process)
    (deployment,) = (running.folder / "runs").glob("*/deployments/*/deployment.json")
    os.kill(json.loads(deployment.read_text())["processes"]["decode-0"]["process"]["pid"], signal.SIGKILL)
    return running.finish()


def interrupt(kit: Any, start_sweep: Any, number: signal.Signals, *before: str) -> Any:
    sweep = kit.with_cases(kit.template(sim=SLOW), {"none": [kit.silent_after(STRUCK_BY)]})
    running = start_sweep({**sweep, "baseline": "none"}, before=before)
    kit.wait(lambda: len(running.records_so_far("pd")) >= 8, running.process)
    running.process.send_signal(number)
    return running.finish()


def kill_rig(kit: Any, start_sweep: Any, faults: Path) -> Resumed:
    """`faults` is where its engines read theirs when they start: the resumed sweep's have none."""
    faults.write_text(json.dumps([kit.silent_after(STRUCK_BY)]))
    sweep = kit.template(sim=SLOW)
    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = str(faults)
    running = start_sweep(sweep)
    kit.wait(lambda: len(running.records_so_far("pd")) >= 16, running.process)
    running.process.kill()
    dead = running.finish()
    kit.wait_gone(dead.processes())
    (cell,), (baseline,) = dead.run.glob("cells/*-1p1d-*"), dead.run.glob("cells/*-mono-*")
    path = cell / "requests.jsonl"
    assert path.read_bytes().endswith(b"\n"), "every line is whole"
    on_disk = {row["request_id"]: row for row in kit.rows(path)}
    kept = {file.name: file.read_bytes() for file in baseline.iterdir()}
    ledger = kit.rows(dead.ledger_path)
    faults.write_text("[]")
    again = start_sweep(None, "--resume", str(dead.run), again=dead).finish()
    return Resumed(dead, on_disk, ledger, kept, again)


def test_case_21_the_engine_lives_on_when_its_api_server_is_killed(kit: Any, stories: Any) -> None:
    killed = stories["engine"].result()
    cell = killed.cells["21 killed"]
    log = Path(cell.deployment["processes"]["decode-0"]["log"]).read_text()
    orphan = re.search(r"EngineCore runs in process (\d+)", log)
    assert orphan and not kit.alive(int(orphan[1])), "it left the session and ignores SIGTERM, and is gone all the same"
    assert cell.deployment["leftovers"] == [] and not killed.left_running()
    assert killed.code == 3


def test_decode_killed_within_the_evaluation(stories: Any) -> None:
    killed = stories["engine"].result()
    cell = killed.cells["21 killed"]
    assert (cell.result["status"], cell.state, cell.channels) == ("failed", "failed", ["errors"])
    assert "decode-0 was ended by SIGKILL" in cell.why
    assert len(cell.records) >= 8 and cell.errors(), "what was asked until then is on disk"
    assert killed.cells["next"].state == "no_baseline", "the next cell ran, on a deployment of its own"
    assert killed.code == 3 and "failed" in killed.out


@pytest.mark.parametrize("by", ["SIGINT", "SIGTERM", "SIGHUP", "terminal"])
def test_an_interrupted_sweep(stories: Any, by: str) -> None:
    ended = stories[by].result()
    assert ended.code == 130 and "verdict" not in ended.out, "no table that could be taken for a result"
    # Where the terminal is gone nobody can be told.
    assert "pdrig: interrupted; what was finished is on disk" in ended.err or by == "terminal"
    cell = ended.cells["none"]
    assert (cell.result["status"], cell.result["verdict"]) == ("interrupted", None)
    assert set(cell.errors().values()) <= {("client", "cancelled")} and len(cell.records) < 40
    assert not ended.left_running()


def test_a_killed_sweep_loses_no_record(kit: Any, stories: Any) -> None:
    story: Resumed = stories["rig"].result()
    assert story.dead.code == -signal.SIGKILL and not story.dead.left_running()
    assert len(story.on_disk) >= 16 and all(row["error"] is None for row in story.on_disk.values())
    answered = {
        kit.client_id(row["request_id"])
        for row in story.ledger
        if row["side"] == "decode" and row["outcome"] == "answered" and row["stream"]
    }
    assert story.on_disk.keys() <= answered
    assert len(answered - story.on_disk.keys()) <= 8, "only answers still on their way are missing: one a connection"


def test_a_killed_sweep_is_resumed(kit: Any, stories: Any) -> None:
    story: Resumed = stories["rig"].result()
    again = story.again
    assert again.code == 0, again.out + again.err
    (cell,), (baseline,) = again.run.glob("cells/*-1p1d-*"), again.run.glob("cells/*-mono-*")
    assert {file.name: file.read_bytes() for file in baseline.iterdir()} == story.baseline, "finished cells are kept"
    assert "finished before this run was resumed" in again.err
    assert {row["request_id"] for row in kit.rows(cell / "requests.1.jsonl")} == story.on_disk.keys()
    judged = again.cells["none"]
    assert judged.state == "pass" and len(judged.records) == 40 and not story.on_disk.keys() & judged.ids


def test_case_13_a_stale_server_listens_on_a_port_of_the_plan(kit: Any, start_sweep: Any, tmp_path: Path) -> None:
    sweep = kit.template()
    plan = next(d for d in kit.planned(sweep, tmp_path).deployments if d.kind == "pd")
    with kit.engines(replace(plan, servers=plan.servers[:1]), tmp_path) as stale:
        refused = start_sweep(sweep).finish()
    assert refused.code == 2 and not (refused.folder / "runs").exists() and len(refused.err.splitlines()) == 1
    pid = stale["prefill-0"].pid
    assert f"prefill-0: port {plan.servers[0].port} is taken by pid {pid}" in refused.err


def test_case_23_side_channels_collide(kit: Any, start_sweep: Any) -> None:
    sweep = kit.template()
    sweep["cell"]["prefill"] |= {"side_channel_port": 5600, "args": {"data-parallel-size": 4}}
    sweep["cell"]["decode"] |= {"side_channel_port": 5602}
    refused = start_sweep(sweep).finish()
    assert refused.code == 2 and not (refused.folder / "runs").exists()
    assert "port 5602 of decode-0's side channel is also that of prefill-0's side channel" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_attached_engines_are_left_alone(kit: Any, start_sweep: Any, tmp_path: Path) -> None:
    sweep = kit.template()
    plan = next(d for d in kit.planned(sweep, tmp_path).deployments if d.kind == "pd")
    urls = {server.role: server.url for server in plan.servers}
    attach = {role: [{"url": url, "log": str(tmp_path / f"{role}-0.log")}] for role, url in urls.items()}
    with kit.engines(plan, tmp_path) as engines:
        done = start_sweep({**sweep, "launcher": "attach", "attach": attach, "baseline": "none"}).finish()
        assert done.code == 0, done.out + done.err
        assert [engine.poll() for engine in engines.values()] == [None, None]
        assert all(kit.well(url) for url in urls.values())
    cell = done.cells["none"]
    assert cell.state == "no_baseline" and cell.result["evidence"]["pd_exercised"] is True
    assert cell.result["counts"]["correct"] == 40 and len(cell.legs) == 80
    assert cell.deployment["launcher"] == "attach" and not done.left_running(), "the rig's own proxy has ended"
