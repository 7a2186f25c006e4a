"""A plan as text; the script is run for real, with stand-ins for the engine, the proxy and the command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_sweeps import free_ports

from rig.config import parse_config
from rig.errors import UsageError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_text import format_plan
from rig.planned import SweepPlan


def sweep(**cell: Any) -> dict[str, Any]:
    return {
        "name": "s",
        "models": {"m": {"path": "/m"}},
        "engines": {"e": {"command": ["vllm", "serve"], "device": "cpu"}},
        "cell": {
            "model": "m",
            "engine": "e",
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
            "task": "t",
            **cell,
        },
        "tasks": {"t": {"task": "gsm-tiny", "limit": 4, "shots": 5, "max_tokens": 96, "stream": False}},
    }


def plan(data: dict[str, Any], rig_python: str = "/rig/bin/python") -> SweepPlan:
    text = json.dumps(data, ensure_ascii=False)
    return plan_sweep(parse_config(text, "x.yaml", Path("/")), Machine(rig_python=rig_python))


SECRET = {"both": {"env": {"HF_TOKEN": "hush", "PLAIN": "a b"}}}


@pytest.mark.parametrize("form", ["table", "json", "sh"])
def test_secrets_are_not_shown(form: str) -> None:
    text = format_plan(plan(sweep(**SECRET)), form)
    assert "hush" not in text
    assert "a b" in text


def test_the_script_refers_to_secrets_of_the_shell() -> None:
    assert 'export HF_TOKEN="${HF_TOKEN}"' in format_plan(plan(sweep(**SECRET)), "sh")


def test_the_table_shows_cells_commands_and_notes() -> None:
    planned = plan(sweep())
    text = format_plan(planned, "table")
    for cell in planned.cells:
        assert cell.id in text
    for deployment in planned.deployments:
        for server in deployment.servers:
            assert shlex.join(server.argv) in text
    assert "8 unstreamed" in text
    assert "side channel 5600" in text
    assert "accuracy may drop by less than 0.02, at level 0.05" in text
    assert all(note in text for note in planned.notes)


def test_json_holds_the_whole_plan() -> None:
    data = json.loads(format_plan(plan(sweep()), "json"))
    assert [c["kind"] for c in data["cells"]] == ["monolithic", "pd"]
    assert data["deployments"][1]["servers"][0]["argv"][:3] == ["vllm", "serve", "/m"]
    assert data["resolved"]["cells"]


def test_an_unknown_format() -> None:
    with pytest.raises(UsageError, match="no plan format 'xml'; there are table, json, sh"):
        format_plan(plan(sweep()), "xml")


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf"]), min_size=1, max_size=12)
VALUE = st.recursive(
    TEXT | st.integers() | st.booleans(),
    lambda inner: st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(TEXT, VALUE, min_size=1, max_size=3), TEXT)
def test_values_survive_the_script(config: dict[str, Any], value: str) -> None:
    data = sweep(prefill={"args": {"hf-overrides": config, "x": value}, "env": {"V": value}})
    planned = plan(data)
    server = planned.deployments[1].servers[0]
    assert json.loads(server.argv[server.argv.index("--hf-overrides") + 1]) == config
    body = format_plan(planned, "sh").split("deployment_1() {")[1]
    command = body[body.index("exec ") :].split("\n    ) >")[0]
    one_line = command.replace(f" \\\n{' ' * 12}", " ")
    assert shlex.split(one_line)[1:] == list(server.argv)
    exports = shlex.split(body[: body.index("exec ")], comments=True)
    assert f"V={value}" in exports


STAND_IN = '''\
"""Answers /health on --port; notes its arguments and environment, and the same when it is ended."""
import http.server, json, os, signal, sys
log = open(os.environ["STAND_IN_LOG"], "a")
argv = sys.argv[1:]
def note(what):
    log.write(json.dumps([what, argv, os.environ.get("PLAIN")]) + "\\n"); log.flush()
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
if argv[0] == "eval":
    note("eval"); raise SystemExit(0)
if "--die" in argv:
    raise SystemExit(1)
def end(*a):
    note("end"); os._exit(0)
signal.signal(signal.SIGTERM, end)
note("start")
http.server.HTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), Health).serve_forever()
'''


def run_script(
    tmp_path: Path, task: dict[str, Any] | None = None, matrix: dict[str, list[Any]] | None = None, **prefill: Any
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    stand_in = tmp_path / "stand_in"
    stand_in.write_text(f"#!{sys.executable}\n{STAND_IN}", encoding="utf-8")
    stand_in.chmod(0o755)
    first, second, third, fourth, fifth = free_ports(5)
    data = sweep(
        both={"env": {"PLAIN": "it's $HOME"}},
        prefill={"port": first, "side_channel_port": second, **prefill},
        decode={"port": third, "side_channel_port": fourth},
        proxy={"port": fifth},
    )
    data["engines"] = {"e": {"command": [str(stand_in), "serve"], "device": "cpu"}}
    data["tasks"]["t"] |= task or {}
    data["matrix"] = matrix or {}
    script = tmp_path / "plan.sh"
    script.write_text(format_plan(plan(data, str(stand_in)), "sh"), encoding="utf-8")
    log = tmp_path / "log"
    log.touch()
    env = {**os.environ, "LOGS": str(tmp_path / "logs"), "PDRIG": str(stand_in), "STAND_IN_LOG": str(log)}
    env |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    env.pop("PDRIG_DATA", None)
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True)
    return done, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_the_script_starts_asks_and_ends_everything(tmp_path: Path) -> None:
    done, events = run_script(tmp_path)
    assert done.returncode == 0, done.stderr
    whats = [event[0] for event in events]
    assert whats.count("start") == whats.count("end") == 4
    assert whats.count("eval") == 2
    assert whats[:3] == ["start", "eval", "end"]
    started = [event for event in events if event[0] == "start" and event[1][0] == "serve"]
    assert {event[2] for event in started} == {"it's $HOME"}
    asked = next(event[1] for event in reversed(events) if event[0] == "eval")
    assert asked[2:] == [
        *("--task", "gsm-tiny", "--model", "m", "--limit", "4", "--shots", "5", "--max-tokens", "96"),
        *("--concurrency", "8", "--warmup", "16", "--no-stream", "--out", asked[-1]),
    ]


def test_the_script_asks_as_the_plan_says() -> None:
    data = sweep()
    data["tasks"]["t"] |= {
        "schedule": {"ramp": {"first": 1, "last": 9.5, "seconds": 60}},
        "endpoint": "chat",
        "params": {"stop": None, "temperature": 0.6},
        "score_reasoning": True,
        "timeouts": {"idle": 5},
        "retries": 2,
    }
    script = format_plan(plan(data), "sh")
    words = shlex.split(script[script.rindex('"$pdrig" eval') :].split("--out")[0].replace("\\\n", " "))
    assert words[words.index("--ramp") :] == [
        *("--ramp", "1", "9.5", "60", "--warmup", "16", "--no-stream", "--chat", "--score-reasoning", "--retries", "2"),
        *("--timeout", "idle=5", "--param", "stop=null", "--param", "temperature=0.6"),
    ]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [({"rate": 0.5}, "--rate 0.5"), ({"poisson": 5}, "--poisson 5"), ({"poisson": 5, "seed": 1}, "--seed 1")],
)
def test_the_script_keeps_the_schedule(schedule: dict[str, Any], words: str) -> None:
    data = sweep()
    data["tasks"]["t"]["schedule"] = schedule
    assert words in format_plan(plan(data), "sh")


def test_the_script_starts_servers_again_before_a_first_pass(tmp_path: Path) -> None:
    done, events = run_script(tmp_path, {"passes": 2}, {"concurrency": [1, 2]})
    assert done.returncode == 0, done.stderr
    whats = [event[0] for event in events]
    assert whats.count("start") == whats.count("end") == 8
    assert whats[:8] == ["start", "eval", "eval", "end", "start", "eval", "eval", "end"]


def test_the_script_ends_everything_when_a_server_dies(tmp_path: Path) -> None:
    done, events = run_script(tmp_path, args={"die": True})
    assert done.returncode == 3
    assert "a process ended before prefill-0 was ready" in done.stderr
    whats = [event[0] for event in events]
    assert whats.count("eval") == 1
    assert whats.count("start") == whats.count("end")


def on_nodes(tmp_path: Path, nodes: str | None) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """The script of a plan on two nodes of an allocation, whose servers were started by hand, and what was noted.

    A stand-in for scontrol lists the nodes; None is no allocation.
    """
    first, second, third, fourth, fifth = free_ports(5)
    data = sweep(
        both={"side_channel_host": "{hostname}", "env": {"PLAIN": "it's $HOME"}},
        prefill={"port": first, "side_channel_port": second, "host": "one"},
        decode={"port": third, "side_channel_port": fourth, "host": "two"},
        proxy={"port": fifth},
    )
    data |= {"launcher": "slurm", "baseline": "none"}
    data["hosts"] = {"one": {"address": "{node0}"}, "two": {"address": "{node1}"}}
    stand_in, scontrol = tmp_path / "stand_in", tmp_path / "scontrol"
    stand_in.write_text(f"#!{sys.executable}\n{STAND_IN}", encoding="utf-8")
    scontrol.write_text(f"#!/bin/sh\nprintf '{nodes}'\n")
    for program in (stand_in, scontrol):
        program.chmod(0o755)
    data["engines"] = {"e": {"command": [str(stand_in), "serve"], "device": "cpu"}}
    script, log = tmp_path / "plan.sh", tmp_path / "log"
    script.write_text(format_plan(plan(data, str(stand_in)), "sh"), encoding="utf-8")
    log.touch()
    env = {**os.environ, "LOGS": str(tmp_path / "logs"), "PDRIG": str(stand_in), "STAND_IN_LOG": str(log)}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    env.pop("SLURM_JOB_NODELIST", None)
    env |= {} if nodes is None else {"SLURM_JOB_NODELIST": "n[1-2]"}
    servers = [subprocess.Popen([stand_in, "serve", "--port", str(port)], env=env) for port in (first, third)]
    try:
        done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return done, [event for event in events if event[1][0] != "serve"]


def test_the_script_runs_on_the_nodes_of_its_allocation(tmp_path: Path) -> None:
    done, events = on_nodes(tmp_path, "127.0.0.1\\nlocalhost\\n")
    assert done.returncode == 0, done.stderr
    for server, node in (("prefill-0", "127.0.0.1"), ("decode-0", "localhost")):
        told = shlex.split(done.stdout[done.stdout.index(f"Start {server} on {node}:") :].split("\nStart ")[0])
        assert f"VLLM_NIXL_SIDE_CHANNEL_HOST={node}" in told and "PLAIN=it's $HOME" in told
    (proxy,) = (argv for what, argv, _ in events if what == "start")
    urls = [proxy[proxy.index(f"--{side}") + 1] for side in ("prefill", "decode")]
    assert [url.rpartition(":")[0] for url in urls] == ["http://127.0.0.1", "http://localhost"]
    assert [what for what, _, _ in events] == ["start", "eval", "end"]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (None, "some servers are on nodes of a Slurm allocation: run this within salloc or sbatch"),
        ("n1\\n", "2 nodes are wanted, and the allocation has 1; ask for more"),
    ],
)
def test_the_script_says_what_it_needs_of_an_allocation(tmp_path: Path, nodes: str | None, said: str) -> None:
    done, events = on_nodes(tmp_path, nodes)
    assert (done.returncode, done.stderr, events) == (2, f"{said}\n", [])
