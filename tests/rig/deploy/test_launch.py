"""A deployment's life with real processes: comes up, fails in every way, ends without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from clocks import Clock

from rig.deploy.guard import descendants
from rig.errors import EngineNotFound, NotUsable, PortLost, RigError, ServerDied, StartFailed, StartTimeout, UsageError
from rig.planned import Limits

Until = Callable[[Callable[[], Any]], Any]
ROOT = Path(__file__).resolve().parents[3]


async def test_comes_up_side_by_side_and_is_recorded(rig: Any) -> None:
    prefill, decode = rig.server("prefill-0", role="prefill"), rig.server()
    deployment = await rig.launch(rig.plan(prefill, decode, proxy=rig.proxy()))

    assert deployment.url == deployment.plan.proxy.url
    assert [server.name for server in deployment.servers] == ["prefill-0", "decode-0"]
    assert deployment.servers[0].metrics_url == f"{prefill.url}/metrics"
    assert await deployment.lost() is None
    assert rig.phases("decode-0") == ["starting", "loading", "checking", "ready"]
    assert rig.phases("pair") == ["checking", "ready"]
    starts = [event.server for event in rig.events if event.phase == "starting"]
    assert starts == ["prefill-0", "decode-0", "proxy"]

    record = json.loads((rig.folder / "d1" / "deployment.json").read_text())
    noted = record["processes"]["decode-0"]
    assert noted["argv"] == list(decode.argv)
    assert noted["env"] == {"A_TOKEN": "***"}
    assert noted["process"]["pid"] == deployment.servers[1].pid
    assert {entry["pid"] for entry in noted["tree"]} >= {noted["guard"]["pid"], noted["process"]["pid"]}
    assert record["ready_unix"] > record["started_unix"]
    assert record["stopped_unix"] is None
    await deployment.flush_legs()
    assert deployment.legs.read_text() == "{}\n"

    assert await deployment.stop() == ()
    assert rig.gone(noted["guard"]["pid"]) and rig.gone(noted["process"]["pid"])
    assert rig.phases("decode-0")[-2:] == ["stopping", "stopped"]
    record = json.loads((rig.folder / "d1" / "deployment.json").read_text())
    assert record["stopped_unix"] and record["processes"]["proxy"]["stopped_unix"] and record["leftovers"] == []


FAILURES = [
    ("exit", StartFailed, "decode-0 ended with exit code 3 before it was ready: OSError: no such model"),
    ("fatal", StartFailed, "decode-0 lost its engine before it was ready: AssertionError: CPU GDN"),
    ("in_use", PortLost, "Address already in use"),
    ("first_exit", NotUsable, "exit code 1 at its first requests: ValueError: Unexpected head dim size, 32"),
    ("first_fatal", NotUsable, "decode-0 lost its engine at its first requests: AssertionError: CPU"),
    ("equal", NotUsable, "all logits are equal"),
]


@pytest.mark.parametrize(("fault", "error", "text"), FAILURES, ids=[row[0] for row in FAILURES])
async def test_a_server_that_does_not_come_up(rig: Any, fault: str, error: type[RigError], text: str) -> None:
    """The good server beside it is stopped too; the limits are far beyond the test's own."""
    plan = rig.plan(rig.server("prefill-0", role="prefill"), rig.server(fault=fault))
    with pytest.raises(error) as raised:
        await rig.launch(plan)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.server == "decode-0"  # type: ignore[attr-defined]
    assert "failed" in rig.phases("decode-0")
    record = json.loads((rig.folder / "d1" / "deployment.json").read_text())
    assert record["failure"] == str(raised.value)
    for process in record["processes"].values():
        assert rig.gone(process["guard"]["pid"])


async def test_a_server_that_hangs_runs_into_the_limit(rig: Any, until: Until) -> None:
    clock = Clock()
    plan = rig.plan(rig.server(fault="hang"), limits=replace(Limits(), start_s=100))
    launching = asyncio.create_task(rig.launch(plan))
    await until(lambda: "loading" in rig.phases("decode-0"))
    clock.advance(100)
    with pytest.raises(StartTimeout, match=r"within 100 s .*ends with: INFO .* Starting to load model tiny"):
        await launching


async def test_a_completion_that_hangs_runs_into_the_limit(rig: Any) -> None:
    with pytest.raises(NotUsable, match=r"more than 0\.5 s"):
        await rig.launch(rig.plan(rig.server(fault="hang_answer"), limits=replace(Limits(), check_s=0.5)))


async def test_a_pair_that_does_not_hand_off(rig: Any) -> None:
    servers = (rig.server("prefill-0", role="prefill"), rig.server("decode-0"))
    with pytest.raises(NotUsable, match="without x-pdrig-prefill"):
        await rig.launch(rig.plan(*servers, proxy=rig.proxy("silent")))


async def test_a_server_that_dies_later_is_noticed(rig: Any) -> None:
    deployment = await rig.launch(rig.plan(rig.server("monolithic-0"), rig.server("monolithic-1")))
    waiting = asyncio.create_task(deployment.wait_failed())
    os.kill(deployment.servers[1].pid, signal.SIGKILL)
    error = await waiting
    assert type(error) is ServerDied
    assert error.server == "monolithic-1"
    assert "was ended by SIGKILL; its log ends with: " in str(error)


async def test_an_engine_that_says_it_died_is_noticed(rig: Any) -> None:
    deployment = await rig.launch(rig.plan(rig.server()))
    async with httpx.AsyncClient(trust_env=False) as http:
        await http.get(f"{deployment.url}/control/fatal")
    error = await deployment.wait_failed()
    assert error.log_line == "AssertionError: CPU GDN attention requires BF16."


async def test_an_engine_process_that_vanishes_is_noticed(
    rig: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rig.deploy.process.TREE_POLL_S", 0.02)
    deployment = await rig.launch(rig.plan(rig.server(fault="engine")))
    engines = [stat for stat in descendants(deployment.servers[0].pid) if stat.name.startswith("VLLM::")]
    await until(lambda: deployment._members[0]._engine)
    os.kill(engines[0].pid, signal.SIGKILL)
    error = await deployment.wait_failed()
    assert f"lost its engine process (pid {engines[0].pid})" in str(error)


async def test_a_killed_api_server_takes_its_engine_along(rig: Any) -> None:
    """The engine is in a session of its own and would live on, holding its GPU."""
    deployment = await rig.launch(rig.plan(rig.server(fault="engine")))
    engine = next(s for s in descendants(deployment.servers[0].pid) if s.name.startswith("VLLM::"))
    os.kill(deployment.servers[0].pid, signal.SIGKILL)
    await deployment.wait_failed()
    assert await deployment.stop() == ()
    assert rig.gone(engine.pid)


async def test_a_server_whose_guard_is_killed_is_ended(rig: Any, until: Until) -> None:
    deployment = await rig.launch(rig.plan(rig.server(fault="engine")))
    process = deployment._members[0]
    engine = next(s for s in descendants(deployment.servers[0].pid) if s.name.startswith("VLLM::"))
    await until(lambda: engine.pid in process._tree)
    os.kill(process.guard_pid, signal.SIGKILL)
    assert "its guard process was killed" in str(await deployment.wait_failed())
    assert await deployment.stop() == ()
    await until(lambda: rig.gone(engine.pid) and rig.gone(deployment.servers[0].pid))


async def test_sigterm_ignored_is_followed_by_sigkill(rig: Any) -> None:
    deployment = await rig.launch(rig.plan(rig.server(fault="stubborn"), limits=replace(Limits(), stop_s=0.3)))
    assert await deployment.stop() == ()
    assert rig.gone(deployment.servers[0].pid)


async def test_stop_is_idempotent_and_survives_cancellation(rig: Any) -> None:
    deployment = await rig.launch(rig.plan(rig.server(fault="stubborn"), limits=replace(Limits(), stop_s=0.3)))
    stopping = asyncio.create_task(deployment.stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert rig.gone(deployment.servers[0].pid)
    assert await deployment.stop() == ()
    assert rig.phases("decode-0").count("stopped") == 1


async def test_a_cancelled_launch_leaves_nothing(rig: Any, until: Until) -> None:
    launching = asyncio.create_task(rig.launch(rig.plan(rig.server(fault="hang"))))
    await until(lambda: "loading" in rig.phases("decode-0"))
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    record = json.loads((rig.folder / "d1" / "deployment.json").read_text())
    assert rig.gone(record["processes"]["decode-0"]["process"]["pid"])


async def test_a_killed_rig_takes_its_servers_along(rig: Any, until: Until) -> None:
    server = rig.server(fault="engine")
    script = f"""
        import asyncio, os
        from pathlib import Path
        from rig.deploy import launch
        from rig.planned import DeploymentPlan, ServerPlan
        server = ServerPlan("decode-0", "decode", {server.argv!r}, {{}}, {server.port}, {server.url!r}, "tiny")
        plan = DeploymentPlan("d1", "monolithic", "local", "tiny", None, (server,))
        async def main():
            deployment = await launch(plan, Path({str(rig.folder)!r}) / "d1", lambda event: None)
            print("up", flush=True)
            await deployment.wait_failed()
        asyncio.run(main())
    """
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(script)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert other.stdout is not None
    assert (await other.stdout.readline()).strip() == b"up"
    pids = [stat.pid for stat in descendants(other.pid)]
    assert len(pids) == 3
    other.kill()
    await other.wait()
    await until(lambda: all(rig.gone(pid) for pid in pids))


@pytest.mark.parametrize("executable", [None, "plain file"])
async def test_a_command_that_is_not_there(rig: Any, executable: str | None) -> None:
    path = rig.folder / "vllm"
    if executable:
        path.write_text(executable)
    plan = rig.plan(rig.server("prefill-0"), replace(rig.server(), argv=(str(path), "serve")))
    with pytest.raises(EngineNotFound, match="is not executable" if executable else "was not found"):
        await rig.launch(plan)
    assert not rig.events


async def test_a_command_that_cannot_be_run(rig: Any) -> None:
    path = rig.folder / "vllm"
    path.write_text("#!/no/such/python\n")
    path.chmod(0o755)
    with pytest.raises(StartFailed, match=r"exit code 127 .*No such file or directory"):
        await rig.launch(rig.plan(replace(rig.server(), argv=(str(path), "serve"))))


async def test_a_server_for_another_host(rig: Any) -> None:
    with pytest.raises(UsageError, match="launcher: attach"):
        await rig.launch(rig.plan(replace(rig.server(), host="node7")))


@pytest.mark.parametrize("side_channel", [False, True])
async def test_a_port_that_is_taken_names_its_holder(rig: Any, side_channel: bool) -> None:
    server = rig.server()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        taken = replace(server, side_channel_ports=(port,)) if side_channel else replace(server, port=port)
        with pytest.raises(PortLost, match=rf"port {port} is taken by pid {os.getpid()} "):
            await rig.launch(rig.plan(taken))
    assert not rig.events


async def test_a_stale_server_on_the_port_is_refused(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the port between the look at it and the start, and answers in our server's place."""
    stale = await rig.launch(rig.plan(rig.server()))
    monkeypatch.setattr("rig.deploy.ports.is_bound", lambda port: False)
    ours = replace(rig.server(fault="hang"), port=stale.plan.servers[0].port, url=stale.url)
    with pytest.raises(NotUsable, match=rf"answered by pid {stale.servers[0].pid} .*did not start"):
        await rig.launch(replace(rig.plan(ours), id="d2"))
    assert await stale.lost() is None


async def test_attach_uses_what_runs_and_stops_nothing(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rig.deploy.watch.WATCH_S", 0.02)
    local = await rig.launch(rig.plan(rig.server("monolithic-0")))
    attached = await rig.launch(rig.attached(*local.plan.servers))
    assert attached.url == local.url
    assert attached.servers[0].pid is None
    assert await attached.stop() == ()
    assert await local.lost() is None

    again = await rig.launch(replace(rig.attached(*local.plan.servers), id="d3"))
    await local.stop()
    assert "does not accept connections" in str(await again.wait_failed())


async def test_attach_reads_the_log_it_is_given(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rig.deploy.watch.WATCH_S", 0.02)
    local = await rig.launch(rig.plan(rig.server("monolithic-0")))
    attached = await rig.launch(rig.attached(*local.plan.servers, log=local.servers[0].log))
    async with httpx.AsyncClient(trust_env=False) as http:
        await http.get(f"{local.url}/control/fatal")
    assert (await attached.wait_failed()).log_line == "AssertionError: CPU GDN attention requires BF16."


async def test_attach_says_where_a_log_is_missing(rig: Any, tmp_path: Path) -> None:
    local = await rig.launch(rig.plan(rig.server("monolithic-0")))
    await rig.launch(replace(rig.attached(*local.plan.servers, log=tmp_path / "none.log"), id="d3"))
    assert f"{local.url}, but there is no log at {tmp_path / 'none.log'}" in [event.text for event in rig.events]


async def test_attach_to_nothing(rig: Any) -> None:
    with pytest.raises(StartFailed, match="decode-0: no healthy server at http"):
        await rig.launch(rig.attached(rig.server()))


async def test_gpu_memory_is_waited_for(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the start, then after the stop: first still in use, then free."""
    state = rig.folder / "calls"
    script = rig.folder / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\necho x >> "{state}"\n[ "$(wc -l < "{state}")" = 2 ] && used=9000 || used=10\n'
        'echo "0, GPU-aa, $used"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("rig.deploy.gpu.POLL_S", 0.01)
    deployment = await rig.launch(rig.plan(replace(rig.server(), gpus=("0",))))
    assert await deployment.stop() == ()
    assert state.read_text().count("x") == 3


async def test_gpu_memory_that_stays_is_named(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = rig.folder / "bin" / "nvidia-smi"
    script.parent.mkdir()
    mark = rig.folder / "mark"
    script.write_text(f'#!/bin/sh\n[ -e "{mark}" ] && used=9000 || used=10\n: > "{mark}"\necho "0, GPU-aa, $used"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    limits = replace(Limits(), gpu_free_s=0)
    deployment = await rig.launch(rig.plan(replace(rig.server(), gpus=("GPU-aa",)), limits=limits))
    assert await deployment.stop() == ("GPU GPU-aa: 8990 MiB more in use than before the start",)
