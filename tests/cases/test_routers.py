"""Routers as an axis: the same cell behind the rig's own proxy, vllm-router, and a router that nobody knows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

SCRIPT = str(Path(__file__).with_name("foreign_router.py"))
PLACES = ("--prefill", "{prefill}", "--decode", "{decode}", "--port", "{port}")
ENOUGH = 60
"""Questions that a ratio of latencies can be told from."""

SLOW = {"ms_per_token": 12}
"""Answers of a third of a second, so that whoever strikes finds some under way."""


def foreign(*options: str) -> dict[str, Any]:
    return {"command": ["{rig_python}", SCRIPT, *PLACES, *options], "health": "/ready"}


def sweep_of(kit: Any, routers: dict[str, Any], names: list[str], **task: Any) -> dict[str, Any]:
    """One cell behind each of the named routers, held against a whole server and the rig's own proxy."""
    sweep = kit.template(task={"warmup": 4, "canaries": 4, **task})
    alone = sweep["baseline"]
    baseline = [alone, {"cell": {"router": "pdrig"}}] if "pdrig" in names else "none"
    # The port after the router's is its metrics' where it has any.
    sweep["cell"]["proxy"]["port"] = kit.free_range(2)
    return {**sweep, "routers": routers, "matrix": {"router": names}, "baseline": baseline}


def by_router(sweep: Any) -> dict[str, Any]:
    return {cell.result["labels"]["router"]: cell for cell in sweep.by_id.values() if cell.result["kind"] == "pd"}


@pytest.fixture(scope="module")
def stories(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """Sweeps side by side."""
    planted = tmp_path_factory.mktemp("faults") / "faults.json"

    def sweep(routers: dict[str, Any], names: list[str], **task: Any) -> Any:
        return start_sweep(sweep_of(kit, routers, names, **task)).finish()

    def killed() -> Any:
        """The router is killed from outside while requests wait behind it."""
        wanted = sweep_of(kit, {"mine": foreign()}, ["mine"])
        wanted["engines"]["sim"]["env"]["PDRIG_SIM_CONFIG"] = json.dumps({"max_num_seqs": 64, **SLOW})
        wanted["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps([kit.silent_after(32)])
        running = start_sweep(wanted)
        kit.wait(lambda: len(running.records_so_far("pd")) >= 12, running.process)
        (path,) = (running.folder / "runs").glob("*/deployments/*/deployment.json")
        psutil.Process(json.loads(path.read_text())["processes"]["proxy"]["process"]["pid"]).send_signal(signal.SIGKILL)
        return running.finish()

    def errors() -> Any:
        """Decode refuses one prompt in five, whoever asks."""
        wanted = sweep_of(kit, {"mine": foreign()}, ["pdrig", "mine"])
        refuse = kit.asked("error_status", 0.2, params={"status": 400, "message": "no"}, when={"side": "decode"})
        wanted["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps([refuse])
        return start_sweep(wanted).finish()

    def resumed() -> Any:
        """The rig is killed in the midst of the cell, and the sweep gone on with."""
        wanted = sweep_of(kit, {"mine": foreign()}, ["mine"], limit=120)
        wanted["engines"]["sim"]["env"]["PDRIG_SIM_CONFIG"] = json.dumps({"max_num_seqs": 64, **SLOW})
        wanted["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = str(planted)
        wanted["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": 600}
        planted.write_text(json.dumps([kit.silent_after(80)]))
        running = start_sweep(wanted)

        def read() -> bool:
            found = list((running.folder / "runs").glob("*/cells/*/readings.json"))
            return any(len(part["ended"]) >= 8 for path in found for part in json.loads(path.read_text())["parts"])

        kit.wait(read, running.process)
        running.process.kill()
        dead = running.finish()
        kit.wait_gone(dead.processes())
        planted.write_text("[]")
        return start_sweep(None, "--resume", str(dead.run), again=dead).finish()

    faults = {
        "never": foreign("--alone-after", "0"),
        "now-and-then": foreign("--alone-after", "25"),
        "dies": foreign("--die-after", "25"),
        "prefill-answers": foreign("--prefill-answers"),
    }
    with ThreadPoolExecutor() as pool:
        yield {
            "both": pool.submit(sweep, {"mine": foreign()}, ["pdrig", "mine"], limit=ENOUGH),
            "errors": pool.submit(errors),
            "faults": pool.submit(sweep, faults, list(faults)),
            "killed": pool.submit(killed),
            "resumed": pool.submit(resumed),
        }


def test_a_cell_behind_two_routers_is_a_comparison(stories: Any) -> None:
    sweep = stories["both"].result()
    assert sweep.code == 0, sweep.out + sweep.err
    cells = by_router(sweep)
    own, mine = cells["pdrig"].result, cells["mine"].result
    assert (cells["pdrig"].state, cells["mine"].state) == ("pass", "pass"), sweep.out
    (against,) = [c for c in mine["comparisons"] if c["baseline"] == own["cell_id"]]
    assert against["n"] == ENOUGH and (against["b"], against["c"]) == (0, 0)
    assert {ratio["metric"] for ratio in against["ratios"]} >= {"ttft_p50", "e2e_p50"}, "the added latency"
    assert len(mine["comparisons"]) == 2, "and against the whole server"


def test_what_a_foreign_router_does_not_tell_is_not_known(stories: Any) -> None:
    cells = by_router(stories["both"].result())
    own, mine = cells["pdrig"], cells["mine"]
    assert set(own.result["legs_ms"]) >= {"prefill", "decode"} and own.legs
    assert mine.result["legs_ms"] == {} and not mine.legs
    proof = mine.result["evidence"]
    assert proof["pd_exercised"] is True and proof["transfers"] == ENOUGH + 4 and proof["bytes"] > 0
    assert proof["local_tokens"] == ENOUGH + 4 and proof["external_tokens"] > 0
    assert any("how long each leg of a request took" in f["text"] for f in proof["findings"])
    assert not any("legs" in f["text"] for f in own.result["evidence"]["findings"])
    (pairs,) = [p for p in mine.folder.glob("pairs.*.jsonl") if "1p1d" in p.name]
    told = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert len(told) == ENOUGH and {(p["prefill"], p["decode"]) for p in told} == {(None, None)}
    # The router's ids are not the rig's; the answers say which they were.
    named = {row["request_id"] for row in mine.ledger if row["side"] == "decode"}
    assert {r.response_id.removeprefix("cmpl-") for r in mine.records if r.response_id} <= named


def test_on_which_leg_a_request_failed_is_known_behind_the_rigs_own_alone(stories: Any) -> None:
    sweep = stories["errors"].result()
    cells = by_router(sweep)
    own, mine = cells["pdrig"].result, cells["mine"].result
    questions = {r.request_id for r in cells["pdrig"].records if r.kind == "question"}
    struck = len(cells["pdrig"].struck("error_status") & questions)
    assert struck and own["counts"]["error"] == mine["counts"]["error"] == {"http_status": struck}
    assert own["counts"]["error_by_leg"] == {"decode": {"http_status": struck}}
    assert mine["counts"]["error_by_leg"] == {"unknown": {"http_status": struck}}
    assert sweep.code == 1 and "errors" in cells["mine"].channels
    (against,) = [c for c in mine["comparisons"] if c["baseline"] == own["cell_id"]]
    assert (against["b"], against["c"]) == (0, 0), "the same ones failed behind the rig's own proxy"


def test_a_router_that_never_hands_over_is_not_used(stories: Any) -> None:
    cell = by_router(stories["faults"].result())["never"]
    assert (cell.result["status"], cell.state) == ("failed", "failed")
    assert "answered 1 request, but no hand-off took place: decode counted 0 transfers" in cell.why
    assert cell.result["accuracy"] is None


def test_a_router_that_stops_handing_over_makes_the_cell_invalid(stories: Any) -> None:
    cell = by_router(stories["faults"].result())["now-and-then"]
    assert (cell.result["status"], cell.state) == ("invalid", "invalid")
    assert cell.result["evidence"]["pd_exercised"] is False
    assert "KV transfers for 44 answered requests" in cell.why
    assert "some requests were prefilled by decode" in cell.why


def test_a_router_that_gives_prefills_own_answer_makes_the_cell_invalid(stories: Any) -> None:
    """All KV moves, and decode answers one token for show."""
    cell = by_router(stories["faults"].result())["prefill-answers"]
    assert (cell.result["status"], cell.state) == ("invalid", "invalid")
    proof = cell.result["evidence"]
    assert proof["transfers"] == 44 and proof["pd_exercised"] is False
    assert "Decode generated 44 tokens" in cell.why and "some were not written by decode" in cell.why


def test_a_router_that_dies_fails_its_cell(stories: Any) -> None:
    sweep = stories["faults"].result()
    cell = by_router(sweep)["dies"]
    assert (cell.result["status"], cell.state) == ("failed", "failed")
    assert "proxy ended with exit code 7" in cell.why and "the router has had enough" in cell.why
    assert sweep.code == 3 and not sweep.left_running()
    assert Path(cell.deployment["processes"]["proxy"]["log"]).name == "proxy.log"


def test_a_router_that_is_killed_fails_its_cell(stories: Any) -> None:
    sweep = stories["killed"].result()
    cell = by_router(sweep).get("mine") or next(iter(sweep.by_id.values()))
    assert (cell.result["status"], cell.state) == ("failed", "failed")
    assert "proxy was ended by SIGKILL" in cell.why
    assert sweep.code == 3 and not sweep.left_running()


def test_a_sweep_is_gone_on_with_behind_a_foreign_router(stories: Any) -> None:
    """Readings in the midst of the load are proof without legs, too."""
    sweep = stories["resumed"].result()
    assert sweep.code == 0, sweep.out + sweep.err
    (cell,) = sweep.by_id.values()
    assert cell.result["resumed"]["kept"] >= 8 and cell.result["evidence"]["pd_exercised"] is True
    (told,) = [f["text"] for f in cell.result["evidence"]["findings"] if "cut short" in f["text"]]
    assert told.endswith("more requests were under way, is their proof")
    assert len(cell.judged) == 120


def test_a_program_that_is_not_there_is_told_before_anything_starts(kit: Any, start_sweep: Any) -> None:
    absent = {"command": ["no-such-router", *PLACES]}
    refused = start_sweep(sweep_of(kit, {"absent": absent}, ["pdrig", "absent"])).finish()
    assert refused.code == 2 and not (refused.folder / "runs").exists()
    assert "the command no-such-router was not found; install it, or name another router" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_attached_servers_behind_a_router_that_runs_already(kit: Any, start_sweep: Any, tmp_path: Path) -> None:
    """The same servers behind the rig's own proxy and behind a router that somebody else runs."""
    sweep = sweep_of(kit, {}, ["pdrig"])
    single = {**sweep, "matrix": {}, "baseline": "none"}
    (plan,) = kit.planned(single, tmp_path).deployments
    urls = {server.role: server.url for server in plan.servers}
    port, late = kit.free_ports(2)
    command = [sys.executable, SCRIPT, "--prefill", urls["prefill"], "--decode", urls["decode"], "--port", str(port)]
    attach = {role: [{"url": url}] for role, url in urls.items()}
    running = {"url": f"http://127.0.0.1:{port}", "health": "/ready"}
    wanted = {**sweep, "launcher": "attach", "attach": attach, "routers": {"running": running}}
    wanted |= {"matrix": {"router": ["pdrig", "running"]}, "baseline": {"cell": {"router": "pdrig"}}}
    with kit.engines(replace(plan, proxy=None), tmp_path), subprocess.Popen(command) as router:
        try:
            done = start_sweep(wanted).finish()
            mortal = subprocess.Popen([*command[:-1], str(late), "--die-after", "25"])
            died = start_sweep(
                {**wanted, "routers": {"running": {**running, "url": f"http://127.0.0.1:{late}"}}}
            ).finish()
            assert mortal.wait() == 7
            given = {**wanted, "routers": {}, "matrix": {}, "baseline": "none"}
            given["attach"] = {**attach, "proxy": running["url"]}
            unwell = start_sweep({**given, "limits": {**given["limits"], "check_s": 10}}).finish()
        finally:
            router.kill()
    assert done.code == 0, done.out + done.err
    cells = by_router(done)
    assert cells["running"].state == "pass" and cells["running"].result["evidence"]["transfers"] == 44
    assert cells["running"].result["commands"]["proxy"] == []
    gone = by_router(died)["running"]
    assert (died.code, gone.state) == (3, "failed") and "proxy does not a" in gone.why, gone.why
    assert unwell.code == 3 and f"did not answer at http://127.0.0.1:{port}/health within 10 s" in unwell.err


def test_vllm_router_hands_over_and_tells_who_served(kit: Any, start_sweep: Any, vllm_router: str) -> None:
    known = {"kind": "vllm-router", "venv": str(Path(vllm_router).parents[1])}
    sweep = sweep_of(kit, {"vllm-router": known}, ["pdrig", "vllm-router"])
    sweep["cell"]["decode"] |= {"instances": 2, "port": kit.free_range(2), "side_channel_port": kit.free_range(2)}
    done = start_sweep(sweep, env={"VLLM_API_KEY": "sk-of-the-engines"}).finish()
    assert done.code == 0, done.out + done.err
    cells = by_router(done)
    assert cells["vllm-router"].state == "pass" and cells["vllm-router"].result["evidence"]["transfers"] == 44
    (pairs,) = [p for p in cells["vllm-router"].folder.glob("pairs.*.jsonl") if "1p2d" in p.name]
    served = [(p["prefill"], p["decode"]) for p in map(json.loads, pairs.read_text().splitlines())]
    assert len(served) == 40 and {name for name, _ in served} == {"prefill-0"}
    assert {name for _, name in served} == {"decode-0", "decode-1"}
    truth = {row["request_id"]: row["port"] for row in done.ledger if row["side"] == "decode"}
    ports = {f"decode-{i}": sweep["cell"]["decode"]["port"] + i for i in range(2)}
    ids = {r.request_id: r.response_id for r in cells["vllm-router"].records}
    for pair in map(json.loads, pairs.read_text().splitlines()):
        assert truth[ids[pair["request_id"]].removeprefix("cmpl-")] == ports[pair["decode"]]
    for file in done.run.rglob("*"):
        assert file.is_dir() or "sk-of-the-engines" not in file.read_text(), f"{file} holds the key"
