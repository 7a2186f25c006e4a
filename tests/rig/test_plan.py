"""The plan: commands, GPUs, ports, ids, baselines, order; and what cannot be planned."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rig.config import parse_config
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.planned import DeploymentPlan, SweepPlan

BASE: dict[str, Any] = {
    "name": "s",
    "models": {"m": {"path": "/models/m", "served_name": "em"}},
    "engines": {"e": {"command": ["vllm", "serve"], "env": {"A": "engine", "B": "engine"}}},
    "cell": {
        "model": "m",
        "engine": "e",
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        "both": {"args": {"max-model-len": 2048, "enforce_eager": True}, "env": {"B": "both", "C": 1}},
        "task": "t",
    },
    "tasks": {"t": {"task": "gsm-tiny", "limit": 400, "concurrency": 8}, "u": {"task": "gsm8k"}},
}
MACHINE = Machine(gpus=tuple(str(i) for i in range(16)), hostname="box", rig_python="/rig/bin/python")


def merged(base: Any, extra: Any) -> Any:
    if isinstance(base, dict) and isinstance(extra, dict):
        return {**base, **{k: merged(base.get(k), v) for k, v in extra.items()}}
    return extra


def plan(extra: dict[str, Any] | None = None, machine: Machine = MACHINE, **options: Any) -> SweepPlan:
    text = yaml.safe_dump(merged(BASE, extra or {}), sort_keys=False)
    return plan_sweep(parse_config(text, "x.yaml", Path("/sweeps")), machine, **options)


def problem(extra: dict[str, Any], machine: Machine = MACHINE, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(extra, machine, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pd(planned: SweepPlan, index: int = 0) -> DeploymentPlan:
    return [d for d in planned.deployments if d.kind == "pd"][index]


def servers(planned: SweepPlan, index: int = 0) -> dict[str, Any]:
    return {server.name: server for server in pd(planned, index).servers}


def test_the_whole_command_of_a_server() -> None:
    planned = plan({"cell": {"decode": {"tp": 2, "args": {"max-model-len": 4096, "block-size": 64}}}})
    decode = servers(planned)["decode-0"]
    assert list(decode.argv) == [
        *("vllm", "serve", "/models/m", "--served-model-name", "em", "--host", "127.0.0.1", "--port", "8200"),
        *("-tp", "2", "--max-model-len", "4096", "--enforce-eager", "--block-size", "64", "--async-scheduling"),
        *("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'),
    ]
    assert decode.env == {
        "A": "engine",
        "B": "both",
        "C": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700",
        "CUDA_VISIBLE_DEVICES": "1,2",
    }
    assert (decode.gpus, decode.tp, decode.url, decode.model) == (("1", "2"), 2, "http://127.0.0.1:8200", "em")


def test_the_proxy_gets_every_url() -> None:
    planned = plan({"cell": {"prefill": {"instances": 2}, "proxy": {"lenient": True, "mode": "push"}}})
    proxy = pd(planned).proxy
    assert proxy is not None
    assert proxy.argv == (
        *("/rig/bin/python", "-m", "proxy", "--host", "127.0.0.1", "--port", "8000"),
        *("--prefill", "http://127.0.0.1:8100", "--prefill", "http://127.0.0.1:8101"),
        *("--decode", "http://127.0.0.1:8200", "--lenient", "--mode", "push"),
    )
    assert proxy.url == "http://127.0.0.1:8000"


PUSH = {"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
BOTH = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [PUSH, OFFLOADING]}}


@pytest.mark.parametrize("config", [PUSH, BOTH], ids=["alone", "in a MultiConnector"])
def test_push_connectors_get_a_proxy_in_push_mode(config: dict[str, Any]) -> None:
    proxy = pd(plan({"cell": {"kv_transfer_config": config}})).proxy
    assert proxy is not None
    assert proxy.argv[-2:] == ("--mode", "push")


def test_a_deployment_knows_what_prefill_is_told_of_the_transfer() -> None:
    extra = {"kv_connector_extra_config": {"kv_lease_duration": 7}}
    found = pd(plan({"cell": {"prefill": {"kv_transfer_config": extra}}}))
    assert found.kv_transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_both", **extra}


@pytest.mark.parametrize(
    ("engine", "head"),
    [
        ({"venv": "../e", "command": None}, ("/e/bin/vllm", "serve", "/models/m")),
        ({"command": ["{rig_python}", "-m", "rig.sim"]}, ("/rig/bin/python", "-m", "rig.sim", "/models/m")),
    ],
)
def test_how_an_engine_is_named(engine: dict[str, Any], head: tuple[str, ...]) -> None:
    assert servers(plan({"engines": {"e": engine}}))["prefill-0"].argv[: len(head)] == head


ARGS: list[tuple[Any, list[str]]] = [
    ("x", ["--k", "x"]),
    ("", ["--k", ""]),
    (7, ["--k", "7"]),
    (0.9, ["--k", "0.9"]),
    (True, ["--k"]),
    (False, ["--no-k"]),
    (None, []),
    (-1, ["--k=-1"]),
    ("-x", ["--k=-x"]),
    (["a", 1, {"b": True}], ["--k", "a", "1", '{"b":true}']),
    ({"a": None, "b": [1.5, "ü \"'$"]}, ["--k", '{"a":null,"b":[1.5,"ü \\"\'$"]}']),
]


@pytest.mark.parametrize(("value", "words"), ARGS)
def test_values_become_words(value: Any, words: list[str]) -> None:
    argv = list(servers(plan({"cell": {"prefill": {"args": {"k": value}}}}))["prefill-0"].argv)
    start = argv.index("--enforce-eager") + 1
    assert argv[start : argv.index("--async-scheduling")] == words


def test_null_drops_what_is_inherited() -> None:
    found = plan({"cell": {"decode": {"args": {"enforce-eager": None}, "env": {"A": None, "B": None}}}})
    decode = servers(found)["decode-0"]
    assert "--enforce-eager" not in decode.argv
    assert not {"A", "B"} & set(decode.env)


def test_no_in_an_option_name_overrides_the_same_option() -> None:
    argv = servers(plan({"cell": {"decode": {"args": {"no-enforce-eager": True}}}}))["decode-0"].argv
    assert "--no-enforce-eager" in argv
    assert "--enforce-eager" not in argv


def test_kv_config_of_a_role_is_laid_over_the_cells() -> None:
    found = servers(plan({"cell": {"prefill": {"kv_transfer_config": {"kv_role": "kv_producer"}}}}))
    assert found["prefill-0"].argv[-1] == '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
    assert found["decode-0"].argv[-1] == '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def test_labels_are_complete_and_the_same_for_every_cell() -> None:
    planned = plan({"matrix": {"decode.args.block-size": [16, 32], "both.env.C": ["x", "y"]}})
    for cell in planned.cells:
        assert list(cell.labels)[:10] == [
            *("model", "engine", "prefill_tp", "decode_tp", "prefill_instances", "decode_instances"),
            *("async_scheduling", "connector", "task", "concurrency"),
        ]
        assert {"decode.args.block-size", "both.env.C"} <= set(cell.labels)
    last = planned.cells[-1]
    assert last.labels["decode.args.block-size"] == 32
    assert last.id.startswith("m-1p1d-tp1-tp1-async-on-c-y-block-size-32-")


def test_a_monolithic_baseline_has_decodes_flags_and_no_connector() -> None:
    planned = plan({"cell": {"decode": {"tp": 2, "args": {"block-size": 64}}, "async_scheduling": False}})
    mono = planned.deployments[0]
    assert (mono.kind, mono.connector, mono.proxy) == ("monolithic", None, None)
    argv, env = list(mono.servers[0].argv), mono.servers[0].env
    assert argv[argv.index("-tp") :] == [
        *("-tp", "2", "--max-model-len", "2048", "--enforce-eager", "--block-size", "64", "--no-async-scheduling"),
    ]
    assert not any("NIXL" in name for name in env)
    cell = planned.cells[0]
    assert (
        cell.labels | {"prefill_tp": None, "decode_tp": 2, "connector": None, "async_scheduling": False} == cell.labels
    )
    assert planned.cells[1].baselines == (cell.id,)
    assert "TP 2, async scheduling off, no KV transfer" in planned.notes[0]


def test_a_pinned_baseline_is_shared() -> None:
    planned = plan(
        {
            "matrix": {"async_scheduling": [True, False], "decode.tp": [1, 2]},
            "baseline": {"monolithic": {"tp": 1, "async_scheduling": True}},
        }
    )
    assert [cell.kind for cell in planned.cells] == ["monolithic", "pd", "pd", "pd", "pd"]
    assert {cell.baselines for cell in planned.cells[1:]} == {(planned.cells[0].id,)}


def test_cells_that_differ_in_their_task_share_a_deployment_and_stand_together() -> None:
    planned = plan({"matrix": {"task": ["t", "u"], "async_scheduling": [True, False], "concurrency": [1, 8]}})
    order = [cell.deployment for cell in planned.cells]
    assert len(planned.deployments) == 4
    assert sum(a != b for a, b in itertools.pairwise(order)) == 3
    assert [d.id for d in planned.deployments] == list(dict.fromkeys(order))
    assert {cell.task.concurrency for cell in planned.cells} == {1, 8}


def test_a_cell_as_baseline() -> None:
    planned = plan(
        {
            "matrix": {"async_scheduling": [True, False], "decode.tp": [1, 2]},
            "baseline": ["monolithic", {"cell": {"async_scheduling": False}}],
        }
    )
    by_id = {cell.id: cell for cell in planned.cells}
    for cell in planned.cells:
        if cell.kind == "pd" and cell.labels["async_scheduling"]:
            other = by_id[cell.baselines[1]]
            assert other.labels == {**cell.labels, "async_scheduling": False}
        elif cell.kind == "pd":
            assert len(cell.baselines) == 1
    assert_baselines_come_first(planned)


def assert_baselines_come_first(planned: SweepPlan) -> None:
    seen: set[str] = set()
    for cell in planned.cells:
        assert set(cell.baselines) <= seen
        seen.add(cell.id)


def test_no_baseline() -> None:
    planned = plan({"baseline": "none"})
    assert [cell.baselines for cell in planned.cells] == [()]


def test_the_same_baseline_twice_is_one() -> None:
    planned = plan({"cell": {"decode": {"tp": 2}}, "baseline": ["monolithic", {"monolithic": {"tp": 2}}]})
    mono, cell = planned.cells
    assert cell.baselines == (mono.id,)
    assert planned.notes[0].endswith(f"held against: {cell.id}")


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({}, "it needs `noise_floor: 1` or more"),
        ({"noise_floor": 1}, None),
        (
            {"noise_floor": 1, "baseline": "stored"},
            "no baseline is asked in this sweep, and stored ones hold no answers",
        ),
        (
            {"noise_floor": 1, "tasks": {"t": {"passes": 2}}},
            "with `passes` no baseline is asked again, so its noise is",
        ),
        ({"tasks": {"t": {"divergence": "tokens"}}}, None),
    ],
)
def test_logprobs_that_can_decide_nothing_are_a_note(extra: dict[str, Any], why: str | None) -> None:
    planned = plan(merged({"tasks": {"t": {"divergence": "logprobs"}}}, extra))
    notes = [note for note in planned.notes if note.startswith("divergence")]
    assert [note.startswith(f"divergence is not judged: {why}") for note in notes] == ([] if why is None else [True])


def test_a_baseline_of_another_engine() -> None:
    planned = plan(
        {"engines": {"old": {"command": ["old", "serve"]}}, "baseline": {"monolithic": {"engine": "old", "port": 9000}}}
    )
    mono = planned.deployments[0].servers[0]
    assert (mono.argv[0], mono.port) == ("old", 9000)
    assert planned.cells[0].labels["engine"] == "old"


def test_axes_of_prefill_share_the_baseline_and_axes_of_decode_do_not() -> None:
    planned = plan({"matrix": {"prefill.args.x": [1, 2], "decode.args.y": [1, 2]}})
    mono = [cell for cell in planned.cells if cell.kind == "monolithic"]
    assert [(c.labels["prefill.args.x"], c.labels["decode.args.y"]) for c in mono] == [(None, 1), (None, 2)]
    assert_baselines_come_first(planned)


def test_exclude_and_expect() -> None:
    planned = plan(
        {
            "matrix": {"async_scheduling": [True, False], "decode.tp": [1, 2, 4]},
            "exclude": [{"async_scheduling": False, "decode.tp": [2, 4]}],
            "expect": [{"match": {"decode_tp": 4}, "xfail": {"reason": "known", "issue": "vLLM 1"}}],
        }
    )
    cells = [cell for cell in planned.cells if cell.kind == "pd"]
    assert [(c.labels["async_scheduling"], c.labels["decode_tp"]) for c in cells] == [
        *((True, 1), (True, 2), (True, 4), (False, 1))
    ]
    assert [c.xfail.reason if c.xfail else None for c in cells] == [None, None, "known", None]


def test_a_glob_takes_the_baselines_along() -> None:
    planned = plan({"matrix": {"decode.tp": [1, 2]}}, cell_glob="*-1p1d-tp1-tp2-*")
    assert [(cell.kind, cell.labels["decode_tp"]) for cell in planned.cells] == [("monolithic", 2), ("pd", 2)]
    assert len(planned.deployments) == 2


def test_limit_bounds_every_task() -> None:
    planned = plan({"matrix": {"task": ["t", "u"]}}, limit=500)
    assert {cell.task.label: cell.task.limit for cell in planned.cells} == {"t": 400, "u": 500}


def test_gpus_says_what_to_plan_for() -> None:
    none = Machine(gpus=())
    assert servers(plan(machine=none, gpus=2))["decode-0"].gpus == ("1",)
    uuids = Machine(gpus=("GPU-a", "GPU-b", "GPU-c"))
    found = servers(plan(machine=uuids))
    assert found["prefill-0"].env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert found["decode-0"].env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert servers(plan(machine=uuids, gpus=2))["decode-0"].gpus == ("GPU-b",)


def test_a_cpu_engine_needs_no_gpus() -> None:
    found = servers(plan({"engines": {"e": {"device": "cpu"}}}, Machine(gpus=())))
    assert all("CUDA_VISIBLE_DEVICES" not in s.env and s.gpus == () for s in found.values())


def test_parallel_sizes_count_gpus() -> None:
    args = {"data-parallel-size": 2, "pipeline-parallel-size": 2}
    found = servers(plan({"cell": {"decode": {"tp": 2, "args": args}}}))
    assert len(found["decode-0"].gpus) == 8
    assert found["decode-0"].side_channel_ports == (5700, 5701)


def test_side_channels_of_older_builds() -> None:
    found = servers(
        plan({"engines": {"e": {"side_channel": "rank_x_tp"}}, "cell": {"decode": {"tp": 2, "instances": 2}}})
    )
    assert found["decode-0"].side_channel_ports == (5700, 5701)
    assert found["decode-1"].side_channel_ports == (5702, 5703)
    assert found["decode-1"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5702"


def test_servers_on_named_hosts() -> None:
    planned = plan(
        {
            "hosts": {"n": {"address": "node-b", "gpus": 4}},
            "cell": {"decode": {"host": "n", "tp": 4}, "prefill": {"tp": 4}},
        },
        Machine(gpus=("0", "1", "2", "3"), hostname="box"),
    )
    found = servers(planned)
    assert found["decode-0"].url == "http://node-b:8200"
    assert found["decode-0"].host == "node-b"
    assert found["decode-0"].gpus == ("0", "1", "2", "3")
    assert found["decode-0"].env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "node-b"
    assert found["prefill-0"].env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "box"
    assert "--host 0.0.0.0" in " ".join(found["decode-0"].argv)
    assert "m-1p1d-tp4-tp4-async-on: decode-0 must be started on node-b (http://node-b:8200)" in planned.notes


ATTACH = {
    "launcher": "attach",
    "attach": {
        "prefill": [{"url": "http://a:1", "metrics": "http://a:2/metrics", "log": "/logs/a"}],
        "decode": [{"url": "http://b:1/"}, {"url": "http://c:1"}],
        "monolithic": {"url": "http://d:1"},
    },
}


def test_attached_servers() -> None:
    planned = plan(ATTACH | {"matrix": {"task": ["t", "u"]}}, Machine(gpus=()))
    mono, both = planned.deployments
    assert [s.name for s in both.attached] == ["prefill-0", "decode-0", "decode-1"]
    assert (both.attached[0].metrics_url, both.attached[0].log) == ("http://a:2/metrics", "/logs/a")
    assert both.attached[1].metrics_url == "http://b:1/metrics"
    assert both.servers == ()
    assert both.proxy is not None
    assert both.proxy.argv[-6:] == ("--prefill", "http://a:1", "--decode", "http://b:1", "--decode", "http://c:1")
    assert [s.role for s in mono.attached] == ["monolithic"]
    assert planned.cells[-1].labels["decode_instances"] == 2


def test_attached_without_a_monolithic_server() -> None:
    attach = merged(ATTACH, {"attach": {"monolithic": None}})
    planned = plan(attach)
    assert [cell.baselines for cell in planned.cells] == [()]
    assert planned.notes == ("attach.monolithic is not given: the cells have no monolithic baseline",)
    assert "needs a server under attach.monolithic" in problem(attach | {"baseline": "monolithic"})


def test_secrets_are_masked_in_what_is_stored() -> None:
    planned = plan({"engines": {"e": {"env": {"HF_TOKEN": "hush"}}}, "cell": {"both": {"env": {"MY_API_KEY": "hush"}}}})
    assert "hush" not in str(planned.resolved)
    assert servers(planned)["prefill-0"].env["HF_TOKEN"] == "hush"


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"cell": {"decode": {"port": 8100}}},
        "cell.decode.port: port 8100 of decode-0 is also that of prefill-0 (cell.prefill.port); move one of the two",
    ),
    (
        {"cell": {"prefill": {"instances": 101}, "decode": {"tp": 1}}},
        "cell.decode.port: port 8200 of decode-0 is also that of prefill-100 (cell.prefill.port); move one of the two",
    ),
    (
        {"cell": {"prefill": {"instances": 2, "side_channel_port": 6550}, "decode": {"side_channel_port": 6551}}},
        "cell.decode.side_channel_port: port 6551 of decode-0's side channel is also that of prefill-1's side channel "
        "(cell.prefill.side_channel_port); move one of the two",
    ),
    (
        {"cell": {"proxy": {"port": 5600}}},
        "cell.prefill.side_channel_port: port 5600 of prefill-0's side channel is also that of the proxy "
        "(cell.proxy.port); move one of the two",
    ),
    (
        {"cell": {"decode": {"port": 65535, "instances": 2}}},
        "cell.decode.port: port 65536 is needed and 65535 is the highest; choose a lower one",
    ),
    (
        {"cell": {"prefill": {"args": {"data-parallel-size": "x"}}}},
        'cell.prefill.args.data-parallel-size: expected a whole number of at least 1, got "x"',
    ),
    ({"matrix": {"decode.tp": [1, 1]}}, "matrix.decode.tp: two cells would have one id, both with model: "),
    (
        {"include": [{"decode.tp": 2}, {"decode": {"tp": 2}}]},
        "include[1]: two cells would have one id, both with model: ",
    ),
    (
        {"matrix": {"both.args.x": [1, 2]}, "cell": {"prefill": {"args": {"x": 3}}, "decode": {"args": {"x": 3}}}},
        "matrix.both.args.x: no command uses this axis: its values change nothing; drop it",
    ),
    (
        {"matrix": {"decode.args.x": [1, 2, "1"]}},
        'matrix.decode.args.x: 1 and "1" give the same commands; drop one of them',
    ),
    (ATTACH | {"matrix": {"decode.tp": [1, 2]}}, "matrix.decode.tp: no command uses this axis"),
    ({"matrix": {"decode.tp": [1]}, "exclude": [{"decode_tp": 2}]}, "exclude[0]: matches no cell of the matrix"),
    ({"matrix": {"decode.tp": [1]}, "exclude": [{"decode_tp": 1}]}, "exclude: no cell is left"),
    ({"exclude": [{}]}, "exclude[0]: an empty entry would exclude every cell; name some labels"),
    (
        {"exclude": [{"decode_pt": 2}]},
        'exclude[0].decode_pt: "decode_pt" is no label of this sweep; did you mean "decode_tp"?',
    ),
    (
        {"exclude": [{"decode.tp": 2, "decode_tp": 1}]},
        "exclude[0].decode_tp: decode_tp is given twice, with 2 before",
    ),
    (
        {"expect": [{"match": {"async_scheduling": 1}, "xfail": {"reason": "r"}}]},
        "expect[0].match: matches no cell; mend it or drop it",
    ),
    (
        {"baseline": {"cell": {"decode_tp": 7}}},
        "baseline.cell: is the baseline of no cell: nothing else in the sweep has these labels",
    ),
    (
        {
            "matrix": {"decode.tp": [1, 2]},
            "baseline": [{"cell": {"decode_tp": 1}}, {"cell": {"decode_tp": 2}}],
        },
        "baseline: the cells are baselines of one another in a circle; break it",
    ),
    (
        {"baseline": ["monolithic", {"monolithic": {"args": {"x": 1}}}]},
        "baseline[1]: two monolithic servers with other commands and equal labels",
    ),
    (
        {
            "hosts": {"n": {"address": "node-b", "gpus": 1}},
            "cell": {"decode": {"host": "n", "tp": 2}},
            "baseline": "none",
        },
        "cell.decode.tp: 2 GPUs needed on node-b (decode-0 2), 1 there by `hosts`; raise its `gpus` or lower `tp`",
    ),
    (
        {"hosts": {"n": {"address": "b", "gpus": 1}}, "cell": {"decode": {"host": "n", "listen": "127.0.0.1"}}},
        "cell.decode.listen: 127.0.0.1 is not reached from other hosts; listen on 0.0.0.0 or {hostname}",
    ),
]


@pytest.mark.parametrize(("extra", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_what_cannot_be_planned_is_one_line(extra: dict[str, Any], message: str) -> None:
    machine = Machine(gpus=tuple(str(i) for i in range(200)))
    assert problem(extra, machine).removeprefix("x.yaml: ").startswith(message)


def test_too_few_gpus() -> None:
    few = Machine(gpus=("0",))
    assert (
        "2 GPUs needed (prefill-0 1 + decode-0 1), 1 here; pick cells that fit with --cell, or plan with --gpus 2"
        in (problem({}, few))
    )
    assert "1 GPUs needed (monolithic-0 1), none here" in problem({}, Machine(gpus=()))
    assert plan({"matrix": {"decode.tp": [1, 8]}}, Machine(gpus=("0", "1")), cell_glob="*-tp1-tp1-*").deployments


def test_a_glob_that_matches_nothing() -> None:
    message = problem({"baseline": "none"}, cell_glob="x*")
    assert message.startswith("x.yaml: --cell x* matches no cell; the cells are m-1p1d-tp1-tp1-async-on-")


SHAPES = st.fixed_dictionaries(
    {
        "prefill": st.fixed_dictionaries({"tp": st.integers(1, 4), "instances": st.integers(1, 4)}),
        "decode": st.fixed_dictionaries({"tp": st.integers(1, 4), "instances": st.integers(1, 4)}),
    }
)
RULES = st.sampled_from(["rank", "rank_x_tp"])


@given(SHAPES, RULES, st.integers(1, 3), st.integers(5600, 5640), st.integers(8100, 8110), st.integers(0, 40))
def test_gpus_and_ports_never_overlap(
    shape: dict[str, Any], rule: str, dp: int, decode_side: int, decode_port: int, gpus: int
) -> None:
    shape = merged(shape, {"decode": {"side_channel_port": decode_side, "port": decode_port}})
    shape = merged(shape, {"both": {"args": {"data-parallel-size": dp}}})
    try:
        planned = plan({"engines": {"e": {"side_channel": rule}}, "cell": shape}, gpus=gpus)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    for deployment in planned.deployments:
        ids = [gpu for server in deployment.servers for gpu in server.gpus]
        assert len(ids) == len(set(ids)) <= gpus
        ports = [port for s in deployment.servers for port in (s.port, *s.side_channel_ports)]
        ports += [deployment.proxy.port] if deployment.proxy else []
        assert len(ports) == len(set(ports))
        for server in deployment.servers:
            assert len(server.gpus) == server.tp * dp
            assert server.env["CUDA_VISIBLE_DEVICES"] == ",".join(server.gpus)


AXES: dict[str, list[Any]] = {
    "decode.tp": [1, 2],
    "async_scheduling": [True, False],
    "prefill.args.block-size": [16, 32],
    "both.env.UCX_TLS": ["tcp", "rc"],
    "task": ["t", "u"],
    "concurrency": [1, 64],
    "kv_transfer_config.kv_load_failure_policy": ["fail", "recompute"],
}


def shuffled(value: Any, rng: Callable[[list[Any]], None]) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rng(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return value


@given(st.lists(st.sampled_from(sorted(AXES)), max_size=4, unique=True), st.integers())
def test_ids_are_unique_and_do_not_depend_on_the_order_of_keys(names: list[str], seed: int) -> None:
    sweep = merged(BASE, {"matrix": {name: AXES[name] for name in names}})
    rng = random.Random(seed)
    ids = []
    for data in (sweep, shuffled(sweep, rng.shuffle)):
        planned = plan_sweep(parse_config(yaml.safe_dump(data, sort_keys=False), "x", Path("/")), MACHINE)
        cells = [cell.id for cell in planned.cells]
        assert len(cells) == len(set(cells))
        assert len({d.id for d in planned.deployments}) == len(planned.deployments)
        assert_baselines_come_first(planned)
        ids.append(sorted(cells))
    assert ids[0] == ids[1]
