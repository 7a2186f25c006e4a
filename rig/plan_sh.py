"""A plan as a bash script: what a person would type, one function a deployment. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from rig.plan_args import compact_json
from rig.planned import CellPlan, DeploymentPlan, ServerPlan, SweepPlan, TaskPlan
from rig.secrets import masked

_HEAD = r"""set -euo pipefail

logs=${LOGS:-$(mktemp -d)}
pdrig=${PDRIG:-@PDRIG@}
groups_started=()

# Ends what this script started, by process group, and nothing else.
stop() {
    local group end=$((SECONDS + 30))
    for group in "${groups_started[@]}"; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    for group in "${groups_started[@]}"; do
        while kill -0 -- "-$group" 2>/dev/null && ((SECONDS < end)); do
            sleep 0.2
        done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    groups_started=()
}
trap stop EXIT
trap 'exit 130' INT TERM

# wait_for NAME URL SECONDS: until it answers there; stops at once when something that was started has ended.
wait_for() {
    local group end=$((SECONDS + $3))
    while ((SECONDS < end)); do
        curl -fsS --max-time 5 -o /dev/null "$2" 2>/dev/null && return 0
        for group in "${groups_started[@]}"; do
            kill -0 "$group" 2>/dev/null || { echo "a process ended before $1 was ready; see $logs" >&2; exit 3; }
        done
        sleep 0.2
    done
    echo "$1 was not ready within $3 s; see $logs" >&2
    exit 3
}
"""

_TAIL = r"""
echo "logs and results: $logs"
if [ "$#" -eq 0 ]; then
    set -- @ALL@
fi
for deployment in "$@"; do
    case $deployment in
@CASES@
        *) echo "no deployment $deployment" >&2; exit 2 ;;
    esac
    stop
done
"""


def format_sh(plan: SweepPlan) -> str:
    """The script; secrets stand in it as references to variables of the shell that runs it."""
    lines = [
        "#!/usr/bin/env bash",
        f"# {plan.name}, planned from {shlex.quote(plan.config_file)}. Runs all deployments one after another,",
        "# or those named: bash SCRIPT DEPLOYMENT ...",
        "# LOGS: folder for logs and results. PDRIG: the command. PDRIG_DATA: folder with train.jsonl and test.jsonl.",
        *(f"# {' '.join(note.split())}" for note in plan.notes),
    ]
    text = "\n".join(lines) + "\n" + _HEAD.replace("@PDRIG@", shlex.quote(_pdrig(plan)))
    for number, deployment in enumerate(plan.deployments):
        cells = [cell for cell in plan.cells if cell.deployment == deployment.id]
        body = "\n".join(_deployment(deployment, cells))
        text += f"\ndeployment_{number}() {{  # {deployment.id}\n{body}\n}}\n"
    names = [d.id for d in plan.deployments]
    cases = "\n".join(f"        {shlex.quote(name)}) deployment_{i} ;;" for i, name in enumerate(names))
    return text + _TAIL.replace("@ALL@", " ".join(map(shlex.quote, names))).replace("@CASES@", cases)


def _pdrig(plan: SweepPlan) -> str:
    """The command beside the interpreter that runs the proxy."""
    python = next((d.proxy.argv[0] for d in plan.deployments if d.proxy and d.proxy.kind == "pdrig"), None)
    return "pdrig" if python is None else str(PurePath(python).with_name("pdrig"))


def _deployment(deployment: DeploymentPlan, cells: Sequence[CellPlan]) -> Iterable[str]:
    yield f'    mkdir -p "$logs"/{shlex.quote(deployment.id)}'
    launches: list[list[CellPlan]] = [[]]
    for cell in cells:
        if cell.fresh and launches[-1]:
            launches.append([])
        launches[-1].append(cell)
    for number, asked in enumerate(launches):
        if number:
            yield "    stop"
        yield from _launch(deployment, asked)


def _launch(deployment: DeploymentPlan, cells: Sequence[CellPlan]) -> Iterable[str]:
    for server in deployment.servers:
        if server.host is None:
            yield from _start(deployment.id, server.name, server.env, server.argv)
        else:
            yield from _elsewhere(server)
    for server in deployment.servers:
        yield f"    wait_for {server.name} {shlex.quote(f'{server.url}/health')} {round(deployment.limits.start_s)}"
    url = (deployment.servers or deployment.attached)[0].url
    if deployment.proxy is not None:
        url = deployment.proxy.url
        if deployment.proxy.argv:
            yield from _start(deployment.id, "proxy", deployment.proxy.env, deployment.proxy.argv)
        yield f"    wait_for proxy {shlex.quote(url + deployment.proxy.health)} {round(deployment.limits.check_s)}"
    for cell in cells:
        yield from _evaluation(cell, url, deployment.model)


def _value(name: str, value: str) -> str:
    return f'"${{{name}}}"' if masked({name: value})[name] != value else shlex.quote(value)


def _command(argv: Sequence[str], indent: str) -> str:
    """The words of a command, each option on a line of its own."""
    text = ""
    for i, word in enumerate(argv):
        text += (f" \\\n{indent}    " if i and word.startswith("-") else " " if i else "") + shlex.quote(word)
    return text


def _start(deployment: str, name: str, env: dict[str, str], argv: Sequence[str]) -> Iterable[str]:
    # Job control gives the process a group of its own, which setsid would too, but with a scheduling group of its
    # own beside: engines that poll with sched_yield would then never yield to one another.
    yield "    set -m"
    yield "    ("
    for variable, value in env.items():
        yield f"        export {variable}={_value(variable, value)}"
    yield f"        exec {_command(argv, ' ' * 8)}"
    yield f'    ) >>"$logs"/{shlex.quote(deployment)}/{name}.log 2>&1 </dev/null &'
    yield "    set +m"
    yield '    groups_started+=("$!")'


def _elsewhere(server: ServerPlan) -> Iterable[str]:
    yield "    cat <<'END'"
    yield f"Start {server.name} on {server.host}:"
    for variable, value in server.env.items():
        yield f"export {variable}={_value(variable, value)}"
    yield _command(server.argv, "")
    yield "END"


def _load(task: TaskPlan) -> list[str]:
    schedule = task.schedule
    if schedule is None:
        return ["--concurrency", str(task.concurrency)]
    if schedule.kind == "ramp":
        return ["--ramp", *(f"{value:g}" for value in (schedule.rate, schedule.last, schedule.seconds))]
    seed = ["--seed", str(schedule.seed)] if schedule.seed else []
    return [f"--{schedule.kind}", f"{schedule.rate:g}", *seed]


def _evaluation(cell: CellPlan, url: str, model: str) -> Iterable[str]:
    task = cell.task
    argv = ["eval", url, "--task", task.name, "--model", model]
    for flag, value in (("--limit", task.limit), ("--shots", task.shots), ("--max-tokens", task.max_tokens)):
        argv += [] if value is None else [flag, str(value)]
    argv += [*_load(task), "--warmup", str(task.warmup)]
    argv += [] if task.stream else ["--no-stream"]
    argv += ["--chat"] if task.endpoint == "chat" else []
    argv += ["--score-reasoning"] if task.score_reasoning else []
    argv += ["--retries", str(task.retries)] if task.retries else []
    for name, seconds in task.timeouts.items():
        argv += ["--timeout", f"{name}={seconds:g}"]
    for name, param in task.params.items():
        argv += ["--param", f"{name}={compact_json(param)}"]
    yield f"    # {cell.id}"
    out = f'--out "$logs"/{shlex.quote(cell.id)} ${{PDRIG_DATA:+--data "$PDRIG_DATA"}}'
    yield f'    "$pdrig" {_command(argv, " " * 4)} \\\n        {out}'
