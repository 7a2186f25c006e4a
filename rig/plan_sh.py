"""A plan as a bash script: what a person would type, one function a deployment. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

from rig.plan_args import compact_json
from rig.plan_hosts import placed
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

# wait_for NAME URL SECONDS: until it answers there, with no HTTP proxy between; stops at once when something that was
# started has ended.
wait_for() {
    local group end=$((SECONDS + $3))
    while ((SECONDS < end)); do
        curl -fsS --noproxy '*' --max-time 5 -o /dev/null "$2" 2>/dev/null && return 0
        for group in "${groups_started[@]}"; do
            kill -0 "$group" 2>/dev/null || { echo "a process ended before $1 was ready; see $logs" >&2; exit 3; }
        done
        sleep 0.2
    done
    echo "$1 was not ready within $3 s; see $logs" >&2
    exit 3
}
"""

# Nodes that are known once the allocation is there: the shell that runs the script puts their names in.
_NODES = r"""
# {node0}, {node1} and so on are the nodes of the Slurm allocation that this runs in.
if [ -z "${SLURM_JOB_NODELIST:-}" ]; then
    echo "some servers are on nodes of a Slurm allocation: run this within salloc or sbatch" >&2
    exit 2
fi
listed=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes <<<"$listed"
if ((${#nodes[@]} < @COUNT@)); then
    echo "@COUNT@ nodes are wanted, and the allocation has ${#nodes[@]}; ask for more" >&2
    exit 2
fi

# named: what comes in, with the names of the nodes.
named() {
    local text i
    text=$(cat)
    for i in "${!nodes[@]}"; do
        text=${text//"{node$i}"/${nodes[i]}}
    done
    echo "$text"
}
"""
_NODE = re.compile("\0([0-9]+)\0")
"""The place of a node in a text on its way into the script: nothing that a plan holds has this character."""

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
    wanted: set[int] = set()

    def node(number: int) -> str:
        wanted.add(number)
        return f"\0{number}\0"

    deployments = [placed(d, node) if d.launcher == "slurm" else d for d in plan.deployments]
    if wanted:
        text += _NODES.replace("@COUNT@", str(max(wanted) + 1))
    for number, deployment in enumerate(deployments):
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
        yield f"    wait_for {server.name} {_word(f'{server.url}/health')} {round(deployment.limits.start_s)}"
    url = (deployment.servers or deployment.attached)[0].url
    if deployment.proxy is not None:
        url = deployment.proxy.url
        if deployment.proxy.argv:
            yield from _start(deployment.id, "proxy", deployment.proxy.env, deployment.proxy.argv)
        yield f"    wait_for proxy {shlex.quote(url + deployment.proxy.health)} {round(deployment.limits.check_s)}"
    for cell in cells:
        yield from _evaluation(cell, url, deployment.model)


def _word(text: str) -> str:
    """A word of the script."""
    parts = enumerate(_NODE.split(text))
    return "".join(f'"${{nodes[{part}]}}"' if i % 2 else shlex.quote(part) for i, part in parts if part) or "''"


def _value(name: str, value: str, quoted: Callable[[str], str]) -> str:
    return f'"${{{name}}}"' if masked({name: value})[name] != value else quoted(value)


def _command(argv: Sequence[str], indent: str, quoted: Callable[[str], str]) -> str:
    """The words of a command, each option on a line of its own."""
    text = ""
    for i, word in enumerate(argv):
        text += (f" \\\n{indent}    " if i and word.startswith("-") else " " if i else "") + quoted(word)
    return text


def _start(deployment: str, name: str, env: dict[str, str], argv: Sequence[str]) -> Iterable[str]:
    # Job control gives the process a group of its own, which setsid would too, but with a scheduling group of its
    # own beside: engines that poll with sched_yield would then never yield to one another.
    yield "    set -m"
    yield "    ("
    for variable, value in env.items():
        yield f"        export {variable}={_value(variable, value, _word)}"
    yield f"        exec {_command(argv, ' ' * 8, _word)}"
    yield f'    ) >>"$logs"/{shlex.quote(deployment)}/{name}.log 2>&1 </dev/null &'
    yield "    set +m"
    yield '    groups_started+=("$!")'


def _elsewhere(server: ServerPlan) -> Iterable[str]:
    lines = [f"Start {server.name} on {server.host}:"]
    lines += [f"export {name}={_value(name, value, shlex.quote)}" for name, value in server.env.items()]
    lines += [_command(server.argv, "", shlex.quote)]
    text = "\n".join(lines)
    told = _NODE.sub(r"{node\1}", text)
    yield f"    {'cat' if told == text else 'named'} <<'END'"
    yield told
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
    yield f'    "$pdrig" {_command(argv, " " * 4, _word)} \\\n        {out}'
