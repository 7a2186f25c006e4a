"""Routers in a sweep file and in its plan: kinds, commands, ports, lanes; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.config import parse_config
from rig.doctor import examine, planned_ports
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_lanes import side_by_side
from rig.plan_text import format_plan
from rig.planned import DeploymentPlan, ProxyPlan, SweepPlan

MACHINE = Machine(gpus=tuple(str(i) for i in range(16)), hostname="box", rig_python="/rig/bin/python")
MINE = ["my-router", "--prefill", "{prefill}", "--decode", "{decode}", "--listen", "{host}:{port}"]
BASE: dict[str, Any] = {
    "name": "s",
    "models": {"m": {"path": "/models/m"}},
    "engines": {"e": {"command": ["vllm", "serve"], "version": "0.32"}},
    "routers": {
        "pdrig": {"kind": "pdrig"},
        "vllm-router": {"kind": "vllm-router", "venv": "envs/router", "args": {"log-level": "warning"}},
        "mine": {"command": MINE, "env": {"MY_TOKEN": "hush", "THREADS": 2}, "health": "/ready"},
        "running": {"url": "http://127.0.0.1:9000/"},
    },
    "cell": {
        "model": "m",
        "engine": "e",
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        "prefill": {"instances": 2},
        "task": "t",
    },
    "tasks": {"t": {"task": "gsm-tiny", "limit": 400}},
}


def merged(base: Any, extra: Any) -> Any:
    if isinstance(base, dict) and isinstance(extra, dict):
        return {**base, **{k: merged(base.get(k), v) for k, v in extra.items()}}
    return extra


def plan(extra: dict[str, Any], **options: Any) -> SweepPlan:
    text = yaml.safe_dump(merged(BASE, extra), sort_keys=False)
    return plan_sweep(parse_config(text, "x.yaml", Path("/sweeps")), MACHINE, **options)


def problem(extra: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(extra)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def behind(router: str, **cell: Any) -> dict[str, Any]:
    return {"cell": {"router": router, **cell}}


def routed(planned: SweepPlan) -> dict[str, DeploymentPlan]:
    """Deployments with prefill and decode, by their cell's router."""
    by_id = {d.id: d for d in planned.deployments}
    return {c.labels.get("router"): by_id[c.deployment] for c in planned.cells if c.kind == "pd"}


def router(planned: SweepPlan) -> ProxyPlan:
    (found,) = [d.proxy for d in planned.deployments if d.kind == "pd"]
    assert found is not None
    return found


def test_the_rigs_own_proxy_is_the_default_and_changes_no_label() -> None:
    default, named = plan({}), plan(behind("pdrig"))
    assert router(default) == router(named) and router(default).kind == "pdrig"
    assert [c.id for c in default.cells] == [c.id for c in named.cells]
    assert "router" not in default.cells[0].labels


def test_vllm_router_gets_the_options_that_a_comparison_needs() -> None:
    found = router(plan(behind("vllm-router", proxy={"port": 7000})))
    assert found.argv == (
        *("/sweeps/envs/router/bin/vllm-router", "--vllm-pd-disaggregation", "--host", "127.0.0.1", "--port", "7000"),
        *("--prefill", "http://127.0.0.1:8100", "--prefill", "http://127.0.0.1:8101"),
        *("--decode", "http://127.0.0.1:8200", "--prometheus-port", "7001"),
        *("--kv-connector", "nixl", "--policy", "round_robin", "--disable-retries", "--log-level", "warning"),
    )
    assert (found.kind, found.port, found.metrics_port) == ("vllm-router", 7000, 7001)
    assert found.ports == (7000, 7001)
    assert (found.url, found.health) == ("http://127.0.0.1:7000", "/health")


def test_args_of_vllm_router_win_and_null_drops_one() -> None:
    args = {"policy": "cache_aware", "disable-retries": None, "request-timeout-secs": 60, "kv-connector": "mooncake"}
    connector = {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
    argv = router(plan({"routers": {"vllm-router": {"args": args, "venv": None}}} | behind("vllm-router"))).argv
    assert argv[0] == "vllm-router" and "--disable-retries" not in argv
    assert argv[argv.index("--policy") + 1] == "cache_aware"
    changed = {"routers": {"vllm-router": {"args": args}}} | behind("vllm-router", kv_transfer_config=connector)
    assert "mooncake" in router(plan(changed)).argv


def test_any_command_gets_addresses_environment_and_a_place_to_ask_for_its_health() -> None:
    found = router(plan(behind("mine", proxy={"host": "0.0.0.0", "port": 7000})))
    assert found.argv == (
        *("my-router", "--prefill", "http://127.0.0.1:8100", "--prefill", "http://127.0.0.1:8101"),
        *("--decode", "http://127.0.0.1:8200", "--listen", "0.0.0.0:7000"),
    )
    assert (found.url, found.health, found.kind) == ("http://127.0.0.1:7000", "/ready", "command")
    assert found.env == {"MY_TOKEN": "hush", "THREADS": "2"}
    own = {"routers": {"mine": {"command": ["{rig_python}", "-m", "r", *MINE[1:]], "venv": None}}}
    assert router(plan(own | behind("mine"))).argv[:3] == ("/rig/bin/python", "-m", "r")


def test_a_router_that_runs_already_is_only_asked() -> None:
    found = router(plan(behind("running")))
    assert (found.argv, found.port, found.url, found.kind) == ((), 9000, "http://127.0.0.1:9000", "url")


def test_routers_as_an_axis_are_cells_held_against_the_rigs_own() -> None:
    names = ["pdrig", "vllm-router", "mine", "running"]
    planned = plan({"matrix": {"router": names}, "baseline": ["monolithic", {"cell": {"router": "pdrig"}}]})
    cells = {c.labels["router"]: c for c in planned.cells}
    assert set(cells) == {None, *names}
    assert cells["pdrig"].baselines == (cells[None].id,) and cells["pdrig"].is_baseline
    for name in names[1:]:
        assert cells[name].baselines == (cells[None].id, cells["pdrig"].id)
        assert f"-{name}-" in cells[name].id
    assert len({d.id for d in planned.deployments}) == 5
    first, *others = routed(planned).values()
    assert all(other.servers == first.servers for other in others), "the same but for the router"


def test_two_names_for_one_router_are_one_axis_value_too_many() -> None:
    twice = {"routers": {"again": {"command": MINE, "env": {"MY_TOKEN": "hush", "THREADS": 2}, "health": "/ready"}}}
    assert "give the same commands; drop one" in problem(twice | {"matrix": {"router": ["pdrig", "mine", "again"]}})


@pytest.mark.parametrize("form", ["table", "json", "sh"])
def test_a_plan_shows_the_routers_command_and_no_secret(form: str) -> None:
    text = format_plan(plan(behind("mine")), form)
    assert "hush" not in text
    assert "my-router" in text and "/ready" in text if form != "table" else "my-router --prefill" in text
    assert {"table": "MY_TOKEN='***'", "json": '"MY_TOKEN": "***"', "sh": 'export MY_TOKEN="${MY_TOKEN}"'}[form] in text
    if form == "sh":
        assert (
            "wait_for proxy http://127.0.0.1:8000/ready " in text
            and "wait_for decode-0 http://127.0.0.1:8200/health " in text
        )
    running = format_plan(plan(behind("running")), form)
    assert "wait_for proxy http://127.0.0.1:9000/health" in running if form == "sh" else "9000" in running


def test_a_script_refers_to_variables_whose_values_hold_secrets() -> None:
    router = {"command": MINE, "env": {"REDIS": "redis://:hush@h:1", "THREADS": "2"}}
    text = format_plan(plan({"routers": {"x": router}, **behind("x")}), "sh")
    assert "hush" not in text and 'export REDIS="${REDIS}"' in text and "export THREADS=2" in text


def test_nothing_of_a_secret_is_stored() -> None:
    assert "hush" not in json.dumps(plan(behind("mine")).resolved)


def test_lanes_move_a_router_with_its_servers() -> None:
    planned = plan({"matrix": {"router": ["pdrig", "vllm-router", "mine"]}}, gpus=16)
    moved = side_by_side(planned, [str(i) for i in range(16)], 2)
    assert len(moved.lanes) == 2
    seen: set[int] = set()
    for lane in moved.lanes:
        mine: set[int] = set()
        for deployment in (d for d in moved.deployments if d.id in lane):
            mine |= {s.port for s in deployment.servers}
            if deployment.proxy is None:
                continue
            mine |= {p for p in (deployment.proxy.port, deployment.proxy.metrics_port) if p}
            urls = [word for word in deployment.proxy.argv if word.startswith("http://")]
            assert urls == [s.url for s in deployment.servers], "prefill first, then decode"
            port = str(deployment.proxy.port)
            assert any(word.endswith(port) for word in deployment.proxy.argv if not word.startswith("http"))
            assert deployment.proxy.url.endswith(f":{port}")
        assert not mine & seen
        seen |= mine


def test_a_router_that_runs_already_keeps_cells_in_one_lane() -> None:
    planned = plan({"matrix": {"router": ["pdrig", "running"]}}, gpus=16)
    assert "a router that runs already knows one set of servers" in side_by_side(planned, ["0"] * 16, 2).notes[-1]


ATTACH = {
    "launcher": "attach",
    "attach": {"prefill": [{"url": "http://a:1"}], "decode": [{"url": "http://b:1"}, {"url": "http://c:1"}]},
    "baseline": "none",
}


def test_attached_servers_behind_any_router() -> None:
    found = routed(plan(ATTACH | {"matrix": {"router": ["pdrig", "mine", "running"]}}))
    mine = found["mine"].proxy
    assert mine is not None
    assert mine.argv[1:7] == ("--prefill", "http://a:1", "--decode", "http://b:1", "--decode", "http://c:1")
    given = merged(ATTACH, {"attach": {"proxy": "http://r:80"}})
    proxy = router(plan(given))
    assert (proxy.kind, proxy.url, proxy.argv) == ("url", "http://r:80", ())
    told = problem(merged(given, behind("mine")))
    assert "cell.router: the router is mine, and attach.proxy names one that runs; drop one of the two" in told


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (behind("vlm-router"), 'cell.router: no router "vlm-router" under routers; did you mean "vllm-router"?'),
        ({"routers": None, **behind("x")}, "routers: expected `key: value` lines"),
        (
            behind("mine", proxy={"lenient": True}),
            "cell.proxy.lenient: only the rig's own proxy has it, and the router is mine",
        ),
        (behind("running", proxy={"mode": "push"}), "cell.proxy.mode: only the rig's own proxy has it"),
        ({"routers": {"x": {}}}, "routers.x: give one of `kind` (pdrig or vllm-router), `command`, and `url`"),
        ({"routers": {"x": {"kind": "pdrig", "url": "http://a:1"}}}, "routers.x: give one of `kind`"),
        ({"routers": {"x": {"kind": "envoy"}}}, "routers.x.kind: expected 'pdrig' or 'vllm-router', got \"envoy\""),
        ({"routers": {"x": {"kind": "pdrig", "args": {}}}}, "routers.x: `args` is not for pdrig; drop it"),
        ({"routers": {"x": {"command": MINE, "args": {"a": 1}}}}, "routers.x: `args` is not for a command"),
        ({"routers": {"x": {"url": "http://a:1", "env": {"A": 1}}}}, "`env` is not for a router that runs already"),
        ({"routers": {"pdrig": {"command": MINE, "kind": None}}}, "`routers.pdrig` is the rig's own proxy"),
        ({"routers": {"x": {"command": ["r"]}}}, "routers.x.command: say where {prefill} and {decode} and {port}"),
        (
            {"routers": {"x": {"command": [*MINE, "--api-key", "k"]}}},
            "routers.x.command: a command is stored and shown",
        ),
        ({"routers": {"x": {"url": "http://me:secret@a:1"}}}, "routers.x.url: a URL is stored and shown"),
        ({"routers": {"x": {"url": "http://a:1/?token=k"}}}, "routers.x.url: paths are appended to this URL"),
        ({"routers": {"x": {"url": "http://a:65536"}}}, "routers.x.url: no host, or no port from 1 to 65535"),
        ({"routers": {"x": {"url": "http://[::1"}}}, "routers.x.url: no host, or no port"),
        ({"routers": {"x": {"command": MINE, "health": "/up?key=k"}}}, "routers.x.health: a path is stored and shown"),
        ({"routers": {"vllm-router": {"args": {"x": "http://a:k@b"}}}}, "args.x: a command is stored and shown"),
        ({"routers": {"x": {"command": MINE, "health": "ready"}}}, "routers.x.health: expected a path such as /health"),
        (
            {"routers": {"vllm-router": {"args": {"port": 1}}}},
            "routers.vllm-router.args.port: pdrig writes this option",
        ),
        ({"routers": {"vllm-router": {"args": {"api-key": "k"}}}}, "VLLM_API_KEY"),
        ({"routers": {"vllm-router": {"args": {"disable-retries": False}}}}, "null drops an option"),
        ({"routers": {"vllm-router": {"args": {"--policy": "x"}}}}, "without dashes in front"),
        (
            behind("vllm-router", proxy={"port": 65535}),
            "cell.proxy.port: port 65536 is needed and 65535 is the highest",
        ),
        (
            behind("vllm-router", decode={"port": 8001}),
            "cell.decode.port: port 8001 of decode-0 is also that of the proxy's metrics (cell.proxy.port)",
        ),
        (
            behind("vllm-router", kv_transfer_config={"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}),
            "cell.router: vllm-router is not known to hand over with NixlPushConnector, only with NixlConnector and "
            "NixlPullConnector; choose another router, or say routers.vllm-router.args.kv-connector",
        ),
    ],
)
def test_what_is_refused(extra: dict[str, Any], told: str) -> None:
    assert told in problem(extra)


def test_doctor_looks_for_the_programs_of_routers() -> None:
    own = {"routers": {"mine": {"command": ["{rig_python}", "-m", "r", *MINE[1:]]}}}
    planned = plan(own | {"matrix": {"router": ["pdrig", "vllm-router", "mine", "running"]}})
    found = [check for check in examine(planned, None) if check.name == "router"]
    absent = [(check.grade, check.found) for check in found]
    assert absent == [
        ("missing", "/sweeps/envs/router/bin/vllm-router is not there"),
        ("missing", "/rig/bin/python is not there"),
    ]
    assert {check.advice for check in found} == {"install it, or mend `routers` in the sweep file"}
    assert 9000 not in planned_ports(planned) and {8000, 8001} <= set(planned_ports(planned))


def test_a_router_that_runs_already_takes_no_port_of_the_plan() -> None:
    planned = plan(behind("running", decode={"port": 8000}))
    assert router(planned).port == 9000 and router(planned).ports == ()
