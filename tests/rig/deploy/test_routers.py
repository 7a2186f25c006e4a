"""Routers that are not the rig's own: started, looked for, watched, and noticed when they are gone."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest

from rig.deploy import require_startable
from rig.errors import EngineNotFound, PortLost, ServerDied, StartFailed
from rig.planned import DeploymentPlan, ProxyPlan

Until = Callable[[Callable[[], Any]], Any]


def router(rig: Any, fault: str = "none", **more: Any) -> ProxyPlan:
    """Any program that answers as a router would, by a command without a place for legs."""
    stand_in = rig.server("router", fault)
    return ProxyPlan(stand_in.argv, stand_in.port, stand_in.url, kind="command", **more)


def planned(rig: Any, proxy: ProxyPlan) -> DeploymentPlan:
    plan: DeploymentPlan = rig.plan(rig.server("prefill-0", role="prefill"), rig.server(), proxy=proxy)
    return plan


def pid_of(deployment: Any, name: str) -> int:
    return int(deployment._record.read()["processes"][name]["process"]["pid"])


async def test_a_command_is_started_with_its_environment_and_writes_no_legs(rig: Any) -> None:
    deployment = await rig.launch(planned(rig, router(rig, env={"MY_TOKEN": "hush", "THREADS": "2"}, health="/ready")))
    assert deployment.legs is None and deployment.url == deployment.plan.proxy.url
    await deployment.flush_legs()
    pid = pid_of(deployment, "proxy")
    assert {"MY_TOKEN": "hush", "THREADS": "2"}.items() <= psutil.Process(pid).environ().items()
    told = deployment._record.read()["processes"]["proxy"]
    assert (told["kind"], told["env"]) == ("command", {"MY_TOKEN": "***", "THREADS": "2"})
    assert await deployment.lost() is None
    assert await deployment.stop() == () and rig.gone(pid)


async def test_a_router_that_ends_at_its_start_is_told_with_its_reason(rig: Any) -> None:
    with pytest.raises(StartFailed, match=r"proxy ended with exit code 3 before it was ready: OSError: no such model"):
        await rig.launch(planned(rig, router(rig, "exit")))


async def test_a_command_that_the_system_does_not_take_fails_this_launch_alone(rig: Any) -> None:
    """A variable of more than 128 KiB."""
    with pytest.raises(StartFailed, match=r"^proxy could not be started: Argument list too long$"):
        await rig.launch(planned(rig, router(rig, env={"CONF": "x" * 200_000})))


@pytest.mark.parametrize("foreign", [True, False])
async def test_a_router_that_is_gone_is_noticed_after_a_load(rig: Any, until: Until, foreign: bool) -> None:
    """All questions fail within milliseconds then, and none of that is what a server did."""
    deployment = await rig.launch(planned(rig, router(rig) if foreign else rig.proxy()))
    pid = pid_of(deployment, "proxy")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: rig.gone(pid))
    lost = await deployment.lost()
    assert isinstance(lost, ServerDied) and str(lost).startswith("proxy was ended by SIGKILL")


async def test_a_router_that_runs_already_is_used_watched_and_left_alone(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rig.deploy.watch.WATCH_S", 0.02)
    monkeypatch.setattr("rig.deploy.deployment.LOST_S", 0.0)
    running = await rig.launch(rig.plan(rig.server("router")))
    pid = pid_of(running, "router")
    proxy = ProxyPlan((), running.plan.servers[0].port, running.url, kind="url")
    plan = replace(planned(rig, proxy), id="d2")
    first = await rig.launch(plan)
    assert first.url == running.url and await first.stop() == () and not rig.gone(pid)
    second = await rig.launch(replace(plan, id="d3"))
    await running.stop()
    told = await second.wait_failed()
    assert str(told) == "proxy does not accept connections any more"
    assert str(await second.lost()) == f"proxy does not answer any more ({running.url}/health)"


def test_what_cannot_be_started_is_told_before_anything_is(rig: Any) -> None:
    absent = ProxyPlan(("no-such-router",), 1, "http://127.0.0.1:1", kind="command")
    with pytest.raises(EngineNotFound, match=r"^proxy: the command no-such-router was not found.* another router in"):
        require_startable(planned(rig, absent))
    there = replace(absent, argv=(sys.executable,), env={"PATH": "/nowhere"})
    require_startable(planned(rig, there))
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(PortLost, match=f"proxy: port {port} is taken"):
            require_startable(planned(rig, replace(there, metrics_port=port)))
        require_startable(planned(rig, ProxyPlan((), port, f"http://127.0.0.1:{port}", kind="url")))
