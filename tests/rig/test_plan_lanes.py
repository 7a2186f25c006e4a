"""Deployments side by side: nothing is shared between lanes, baselines come first, and why there are no more lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.plan_lanes import launches, needs, schedule, side_by_side
from rig.plan_text import format_plan
from rig.planned import CellPlan, DeploymentPlan, ProxyPlan, ServerPlan, SweepPlan, TaskPlan
from rig.records import Gates, Role

TASK = TaskPlan("t", "gsm-tiny", 1, 0, None, 1, True, 0)


def server(name: str, port: int, gpus: int, side: int | None = None) -> ServerPlan:
    ids = tuple(str(i) for i in range(gpus))
    env = {"CUDA_VISIBLE_DEVICES": ",".join(ids)} if gpus else {}
    env |= {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)} if side else {}
    ports = () if side is None else (side, side + 1)
    argv = ("vllm", "serve", "m", "--port", str(port), "-tp", "1")
    role: Role = "prefill" if name.startswith("prefill") else "decode"
    return ServerPlan(name, role, argv, env, port, f"http://127.0.0.1:{port}", "m", ports, ids)


def pd(name: str, gpus: int = 1) -> DeploymentPlan:
    servers = (server("prefill-0", 8100, gpus, 5600), server("decode-0", 8200, 0, 5700))
    argv = ("python", "-m", "proxy", "--port", "8000", "--prefill", servers[0].url, "--decode", servers[1].url)
    written = ("python", "-m", "proxy", "--port", "{port}", "--prefill", "{prefill}", "--decode", "{decode}")
    proxy = ProxyPlan(argv, 8000, "http://127.0.0.1:8000", written=written)
    return DeploymentPlan(name, "pd", "local", "m", "N", servers, proxy=proxy)


def cell(name: str, deployment: str, *baselines: str, fresh: bool = False) -> CellPlan:
    return CellPlan(name, {}, "pd", deployment, TASK, Gates(), baselines, fresh=fresh)


def sweep(gpus: int, count: int = 4) -> SweepPlan:
    """A baseline, and deployments held against it with two cells each."""
    alone = DeploymentPlan("mono", "monolithic", "local", "m", None, (server("monolithic-0", 8200, gpus),))
    others = [pd(f"pd{i}", gpus) for i in range(count)]
    cells = [cell("base", "mono"), *(cell(f"{d.id}-{k}", d.id, "base") for d in others for k in (1, 2))]
    return SweepPlan("s", "x.yaml", (alone, *others), tuple(cells), {})


def ports(deployment: DeploymentPlan) -> set[int]:
    own = {p for s in deployment.servers for p in (s.port, *s.side_channel_ports)}
    return own | ({deployment.proxy.port} if deployment.proxy else set())


def gpus(deployment: DeploymentPlan) -> set[str]:
    return {g for s in deployment.servers for g in s.gpus}


@given(st.integers(0, 3), st.integers(1, 6), st.integers(0, 8), st.integers(0, 6))
def test_lanes_share_nothing_and_forget_nobody(each: int, count: int, have: int, most: int) -> None:
    plan = sweep(each, count)
    divided = side_by_side(plan, [str(i) for i in range(have)], most)
    if not divided.lanes:
        assert divided.deployments == plan.deployments and divided.notes[-1].startswith("--parallel: one after")
        return
    by_id = {d.id: d for d in divided.deployments}
    assert sorted(name for lane in divided.lanes for name in lane) == sorted(by_id)
    assert len(divided.lanes) <= (most or len(by_id))
    for i, lane in enumerate(divided.lanes):
        for other in divided.lanes[i + 1 :]:
            for one in lane:
                for two in other:
                    assert not ports(by_id[one]) & ports(by_id[two])
                    assert not gpus(by_id[one]) & gpus(by_id[two])
    assert all(gpus(d) <= {str(i) for i in range(have)} for d in divided.deployments)


def test_a_moved_deployment_says_everywhere_where_it_is() -> None:
    divided = side_by_side(sweep(1), ["4", "5"], 0)
    assert divided.lanes == (("mono", "pd0", "pd2"), ("pd1", "pd3"))
    moved = next(d for d in divided.deployments if d.id == "pd1")
    prefill, decode = moved.servers
    assert moved.proxy is not None
    step = prefill.port - 8100
    assert step > 0 and decode.port == 8200 + step and moved.proxy.port == 8000 + step
    assert prefill.argv == ("vllm", "serve", "m", "--port", str(prefill.port), "-tp", "1")
    assert (prefill.url, prefill.gpus) == (f"http://127.0.0.1:{prefill.port}", ("5",))
    side = 5600 + step
    assert prefill.side_channel_ports == (side, side + 1)
    assert prefill.env == {"CUDA_VISIBLE_DEVICES": "5", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)}
    assert moved.proxy.argv[3:] == ("--port", str(8000 + step), "--prefill", prefill.url, "--decode", decode.url)
    assert moved.proxy.url == f"http://127.0.0.1:{8000 + step}"
    first = next(d for d in divided.deployments if d.id == "mono")
    assert first.servers[0].gpus == ("4",) and first.servers[0].port == 8200


WHYS = [
    (sweep(0), 8, 0, "its servers use no GPUs: say how many lanes there should be (--parallel N)"),
    (sweep(3), 5, 0, "its largest deployment takes 3 of 5 GPUs"),
    (sweep(1), 8, 1, "one lane was asked for"),
    (replace(sweep(1), deployments=sweep(1).deployments[:1]), 8, 0, "it has one deployment"),
    (
        replace(sweep(1), deployments=tuple(replace(d, launcher="slurm") for d in sweep(1).deployments)),
        *(8, 0, "only servers that the sweep starts on this machine run side by side"),
    ),
]


@pytest.mark.parametrize(("plan", "have", "most", "why"), WHYS)
def test_one_lane_has_a_reason(plan: SweepPlan, have: int, most: int, why: str) -> None:
    divided = side_by_side(plan, [str(i) for i in range(have)], most)
    assert divided.lanes == () and divided.notes == (f"--parallel: one after another, as {why}",)


def test_ports_at_the_end_of_the_range_leave_one_lane() -> None:
    last = replace(server("monolithic-0", 65535, 0))
    alone = DeploymentPlan("mono", "monolithic", "local", "m", None, (last,))
    plan = SweepPlan("s", "x", (alone, replace(alone, id="two")), (cell("a", "mono"), cell("b", "two")), {})
    assert side_by_side(plan, (), 2).notes[0].endswith("no 2 sets of ports below 65535 are free of each other")


def test_baselines_are_waited_for_where_they_come_before() -> None:
    cells = [cell("a", "A"), cell("b", "B", "a", "c"), cell("c", "C", "b"), cell("d", "A", "c")]
    assert needs(cells) == {"A": set(), "B": {"A"}, "C": {"B"}}, "never a circle"
    plan = SweepPlan("s", "x", tuple(replace(pd("x"), id=n) for n in "ABC"), tuple(cells), {})
    assert schedule(plan, 3) == (("A", "B", "C"),), "nothing can run beside what it waits for"


def test_the_plan_shows_what_is_launched_when_and_what_that_saves() -> None:
    labels = dict.fromkeys(("prefill_tp", "decode_tp", "async_scheduling", "connector", "schedule"))
    plan = sweep(1, 2)
    plan = replace(plan, cells=tuple(replace(c, labels=labels) for c in plan.cells))
    text = format_plan(plan, "table")
    assert "s: 5 cells, 3 launches (x.yaml)" in text
    told = "schedule: 3 launches, 2 fewer than one a cell\n  mono (1 cell), then pd0 (2 cells), then pd1 (2 cells)\n"
    assert told in text
    divided = format_plan(side_by_side(plan, ["0", "1"], 0), "table")
    assert "  lane 1: mono (1 cell), then pd0 (2 cells)\n  lane 2: pd1 (2 cells)\n" in divided
    assert "GPU 1, side channels 56" in divided


def test_launches_of_cells() -> None:
    assert launches([cell("a", "A"), cell("b", "A"), cell("c", "B"), cell("d", "A")]) == 2
    assert launches([cell("a", "A", fresh=True), cell("b", "A", fresh=True), cell("c", "A")]) == 2
    assert launches([]) == 0
