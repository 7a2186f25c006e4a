"""Deployments side by side: which run in which lane, with GPUs and ports of their own. Pure.

A lane is a share of the machine's GPUs and a set of ports; within it one deployment follows the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from rig.plan_routers import relocated
from rig.planned import CellPlan, DeploymentPlan, ServerPlan, SweepPlan

HIGHEST_PORT = 65535
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
VISIBLE = "CUDA_VISIBLE_DEVICES"
LAUNCH_COSTS = 2
"""A launch in units of a cell, to guess which lane is free first; nothing else hangs on it."""


def side_by_side(plan: SweepPlan, gpus: Sequence[str], most: int) -> SweepPlan:
    """The plan in as many lanes as GPUs and ports allow, at most `most` (0: where GPUs decide, as many as they allow).

    `gpus` are the machine's. A plan that cannot be divided comes back with a note that says why.
    """
    lanes, why = _lanes(plan, len(gpus), most)
    if lanes > 1:
        ports = _ports(plan.deployments)
        step = _step(ports, lanes)
        if step is None:
            lanes, why = 1, f"no {lanes} sets of ports below {HIGHEST_PORT} are free of each other"
    if lanes == 1:
        return replace(plan, notes=(*plan.notes, f"--parallel: one after another, as {why}"))
    assert step is not None
    chosen = schedule(plan, lanes)
    size = len(gpus) // lanes
    moved = {
        name: (lane * step, tuple(gpus[lane * size : (lane + 1) * size]))
        for lane, mine in enumerate(chosen)
        for name in mine
    }
    note = f"--parallel: {lanes} lanes; cells side by side share processors and memory, which their latencies may show"
    return replace(
        plan,
        deployments=tuple(_moved(d, *moved[d.id]) for d in plan.deployments),
        lanes=chosen,
        notes=(*plan.notes, note),
    )


def schedule(plan: SweepPlan, lanes: int) -> tuple[tuple[str, ...], ...]:
    """Each deployment in the lane that can take it first, in the plan's order, and after those it is held against."""
    free = [0] * lanes
    ends: dict[str, int] = {}
    chosen: list[list[str]] = [[] for _ in range(lanes)]
    needed = needs(plan.cells)
    for deployment in plan.deployments:
        after = max((ends[other] for other in needed.get(deployment.id, ())), default=0)
        lane = min(range(lanes), key=lambda i: (max(free[i], after), i))
        start = max(free[lane], after)
        mine = [cell for cell in plan.cells if cell.deployment == deployment.id]
        ends[deployment.id] = free[lane] = start + len(mine) + LAUNCH_COSTS * launches(mine)
        chosen[lane].append(deployment.id)
    return tuple(tuple(mine) for mine in chosen if mine)


def needs(cells: Sequence[CellPlan]) -> Mapping[str, set[str]]:
    """The deployments that must have been asked before each: those of baselines, if they come before it in the plan."""
    deployment_of = {cell.id: cell.deployment for cell in cells}
    order = {name: i for i, name in enumerate(dict.fromkeys(cell.deployment for cell in cells))}
    found: dict[str, set[str]] = {}
    for cell in cells:
        others = {deployment_of[b] for b in cell.baselines if b in deployment_of}
        found.setdefault(cell.deployment, set()).update(o for o in others if order[o] < order[cell.deployment])
    return found


def launches(cells: Sequence[CellPlan]) -> int:
    """How often servers are started for these cells: once a deployment, and anew where fresh ones are asked for."""
    used: set[str] = set()
    total = 0
    for cell in cells:
        total += cell.deployment not in used or cell.fresh
        used.add(cell.deployment)
    return total


def _lanes(plan: SweepPlan, gpus: int, most: int) -> tuple[int, str]:
    """How many lanes there are, and why there are no more."""
    servers = [s for d in plan.deployments for s in d.servers]
    if any(d.launcher != "local" for d in plan.deployments) or any(s.host is not None for s in servers):
        return 1, "only servers that the sweep starts on this machine run side by side"
    if any(d.proxy is not None and not d.proxy.written for d in plan.deployments):
        return 1, "a router that runs already knows one set of servers"
    largest = max((sum(len(s.gpus) for s in d.servers) for d in plan.deployments), default=0)
    if largest == 0:
        lanes, why = most or 1, "its servers use no GPUs: say how many lanes there should be (--parallel N)"
    else:
        by_gpus = gpus // largest
        lanes, why = min(by_gpus, most or by_gpus), f"its largest deployment takes {largest} of {gpus} GPUs"
    if len(plan.deployments) < 2:
        return 1, "it has one deployment"
    return max(1, min(lanes, len(plan.deployments))), "one lane was asked for" if most == 1 else why


def _ports(deployments: Sequence[DeploymentPlan]) -> set[int]:
    ports = {p for d in deployments for s in d.servers for p in (s.port, *s.side_channel_ports)}
    return ports | {port for d in deployments if d.proxy is not None for port in d.proxy.ports}


def _step(ports: set[int], lanes: int) -> int | None:
    """By how much ports move from one lane to the next, so that no two lanes share one."""
    for step in count(1):
        if max(ports) + step * (lanes - 1) > HIGHEST_PORT:
            return None
        if not any(port + step * k in ports for k in range(1, lanes) for port in ports):
            return step
    return None


def _moved(deployment: DeploymentPlan, by: int, gpus: tuple[str, ...]) -> DeploymentPlan:
    taken = iter(gpus)
    servers = tuple(_server(s, by, tuple(next(taken) for _ in s.gpus)) for s in deployment.servers)
    proxy = deployment.proxy
    if proxy is not None:
        urls = {role: [s.url for s in servers if s.role == role] for role in ("prefill", "decode")}
        proxy = relocated(proxy, proxy.port + by, urls["prefill"], urls["decode"])
    return replace(deployment, servers=servers, proxy=proxy)


def _server(server: ServerPlan, by: int, gpus: tuple[str, ...]) -> ServerPlan:
    port, env = server.port + by, dict(server.env)
    if SIDE_CHANNEL in env:
        env[SIDE_CHANNEL] = str(int(env[SIDE_CHANNEL]) + by)
    if server.gpus:
        env[VISIBLE] = ",".join(gpus)
    return replace(
        server,
        argv=_with_port(server.argv, port),
        env=env,
        port=port,
        url=_url(server.url, port),
        side_channel_ports=tuple(p + by for p in server.side_channel_ports),
        gpus=gpus,
    )


def _with_port(argv: Sequence[str], port: int) -> tuple[str, ...]:
    at = argv.index("--port") + 1
    return (*argv[:at], str(port), *argv[at + 1 :])


def _url(url: str, port: int) -> str:
    return f"{url.rpartition(':')[0]}:{port}"
