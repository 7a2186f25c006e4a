"""A plan as text: a table for people, JSON for programs, a script to run by hand. Pure."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rig.columns import aligned
from rig.errors import UsageError
from rig.plan_lanes import launches
from rig.plan_sh import format_sh
from rig.planned import CellPlan, DeploymentPlan, ProxyPlan, ServerPlan, SweepPlan, TaskPlan
from rig.secrets import masked

FORMATS = ("table", "json", "sh")


def format_plan(plan: SweepPlan, form: str) -> str:
    """`form` is one of FORMATS; values of secret variables are masked. Raises UsageError for another one."""
    if form == "table":
        return _table(plan)
    if form == "json":
        return _json(plan)
    if form == "sh":
        return format_sh(plan)
    raise UsageError(f"no plan format {form!r}; there are {', '.join(FORMATS)}")


def _json(plan: SweepPlan) -> str:
    data = dataclasses.asdict(plan)
    for deployment in data["deployments"]:
        for server in deployment["servers"]:
            server["env"] = masked(server["env"])
        if deployment["proxy"] is not None:
            deployment["proxy"]["env"] = masked(deployment["proxy"]["env"])
    return json.dumps(data, indent=2, ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def _cell_row(cell: CellPlan, extras: Sequence[str]) -> list[str]:
    task, labels = cell.task, cell.labels
    questions = "all" if task.limit is None else str(task.limit)
    held_against = [*cell.baselines, *(["stored"] if cell.stored else [])]
    baseline = ", ".join(held_against) or ("none" if cell.kind == "pd" else "-")
    named = ("prefill_tp", "decode_tp", "async_scheduling", "connector")
    head = [cell.id, "PD" if cell.kind == "pd" else "monolithic", *(_shown(labels[name]) for name in named)]
    load = str(task.concurrency) if task.schedule is None else str(labels["schedule"])
    tail = [_asked(task), questions, f"{load}{'' if task.stream else ' unstreamed'}", baseline]
    return [*head, *(_shown(labels[name]) for name in extras), *tail, "xfail" if cell.xfail else ""]


def _asked(task: TaskPlan) -> str:
    """The task's label, and how it is asked where that is unusual."""
    words = [task.label] + (["as chat"] if task.endpoint == "chat" else [])
    words += ["reasoning scored"] if task.score_reasoning else []
    words += [f"retries {task.retries}"] if task.retries else []
    return ", ".join(words + ([f"pass {task.pass_}"] if task.pass_ else []))


_COMMON = {
    *("model", "engine", "prefill_tp", "decode_tp", "prefill_instances", "decode_instances"),
    *("async_scheduling", "connector", "task", "concurrency", "schedule", "pass"),
}


def _table(plan: SweepPlan) -> str:
    started = launches(plan.cells)
    lines = [f"{plan.name}: {len(plan.cells)} cells, {started} launches ({plan.config_file})", ""]
    extras = [name for name in (plan.cells[0].labels if plan.cells else ()) if name not in _COMMON]
    header = ["cell", "kind", "prefill TP", "decode TP", "async", "connector", *extras]
    header += ["task", "questions", "load", "baseline", ""]
    lines += aligned([header, *(_cell_row(cell, extras) for cell in plan.cells)])
    for cell in plan.cells:
        if cell.xfail:
            issue = f" ({cell.xfail.issue})" if cell.xfail.issue else ""
            lines += [f"  {cell.id} is expected to fail: {cell.xfail.reason}{issue}"]
    if plan.cells:
        gates = plan.cells[0].gates
        lines += ["", f"gates: accuracy may drop by less than {gates.max_accuracy_drop:g}, at level {gates.alpha:g}"]
    lines += ["", *_schedule(plan, started)]
    for deployment in plan.deployments:
        lines += ["", *_deployment(deployment)]
    if plan.notes:
        lines += ["", "notes:", *(f"  {note}" for note in plan.notes)]
    return "\n".join(lines)


def _schedule(plan: SweepPlan, started: int) -> Iterable[str]:
    """What is launched when, as far as verdicts do not ask for fresh servers in between."""
    saved = len(plan.cells) - started
    yield f"schedule: {started} launches, {saved} fewer than one a cell" if saved else f"schedule: {started} launches"
    cells = Counter(cell.deployment for cell in plan.cells)
    for i, lane in enumerate(plan.lanes or (tuple(d.id for d in plan.deployments),), 1):
        told = (f"{name} ({cells[name]} cell{'s' * (cells[name] != 1)})" for name in lane)
        yield f"  {f'lane {i}: ' if plan.lanes else ''}{', then '.join(told)}"


def _deployment(deployment: DeploymentPlan) -> Iterable[str]:
    connector = f", {deployment.connector}" if deployment.connector else ""
    limits = dataclasses.asdict(deployment.limits)
    yield f"{deployment.id}  ({deployment.kind}{connector}, launcher {deployment.launcher})"
    yield "  limits: " + ", ".join(f"{name} {value:g}" for name, value in limits.items())
    for server in deployment.servers:
        yield f"  {server.name}: {_where(server)}"
        for name, value in masked(server.env).items():
            yield f"    {name}={shlex.quote(value)}"
        yield f"    {shlex.join(server.argv)}"
    for attached in deployment.attached:
        log = f", log {attached.log}" if attached.log else ""
        yield f"  {attached.name}: runs already at {attached.url}, metrics {attached.metrics_url}{log}"
    if deployment.proxy is not None:
        yield from _proxy(deployment.proxy)


def _proxy(proxy: ProxyPlan) -> Iterable[str]:
    name = {"pdrig": "proxy", "vllm-router": "router (vllm-router)"}.get(proxy.kind, "router")
    yield f"  {name}: {proxy.url}" + (f", metrics {proxy.metrics_port}" if proxy.metrics_port is not None else "")
    for variable, value in masked(proxy.env).items():
        yield f"    {variable}={shlex.quote(value)}"
    yield f"    {shlex.join(proxy.argv)}" if proxy.argv else "    runs already"


def _where(server: ServerPlan) -> str:
    parts = [server.url]
    if server.gpus:
        parts.append(f"GPU {','.join(server.gpus)}")
    if server.side_channel_ports:
        first, last = server.side_channel_ports[0], server.side_channel_ports[-1]
        parts.append(f"side channel {first}" if first == last else f"side channels {first} to {last}")
    if server.host is not None:
        parts.append(f"on {server.node or server.host}")
    return ", ".join(parts)
