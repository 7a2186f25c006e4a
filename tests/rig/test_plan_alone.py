"""Cells of one server with a connector: decode's, without a prefill server, a side channel or a router."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.config import load_config
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.planned import SweepPlan

ROOT = Path(__file__).parents[2]


def planned(folder: Path, **changes: Any) -> SweepPlan:
    sweep = yaml.safe_load((ROOT / "configs" / "passes_offloading.yaml").read_text()) | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return plan_sweep(load_config(folder / "sweep.yaml"), Machine(gpus=("0", "1"), hostname="a"))


def test_passes_are_held_against_a_plain_server_and_the_cold_pass(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    alone, plain = ([c for c in plan.cells if bool(c.baselines) is held] for held in (True, False))
    assert {c.kind for c in plan.cells} == {"monolithic"} and len(alone) == len(plain) == 4
    assert {c.labels["prefill_instances"] for c in alone} == {0}
    for cell in alone:
        named = [next(c for c in plan.cells if c.id == name) for name in cell.baselines]
        of_plain = [c.labels["pass"] for c in named if c.labels["connector"] is None]
        of_alone = [c.labels["pass"] for c in named if c.labels["connector"] is not None]
        assert of_plain == [cell.labels["pass"]]
        assert of_alone == ([1] if cell.labels["pass"] == 2 else [])
        assert {c.labels["task"] for c in named} == {cell.labels["task"]}


def test_the_server_has_the_connector_and_nothing_of_a_hand_off(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    plain, alone = sorted(plan.deployments, key=lambda d: d.connector or "")
    assert (plain.connector, alone.connector) == (None, "OffloadingConnector")
    for deployment in (plain, alone):
        (server,) = deployment.servers
        assert deployment.proxy is None and server.side_channel_ports == () and server.gpus == ("0",)
        assert not any(name.startswith("VLLM_NIXL") for name in server.env)
        at = server.argv.index("--num-gpu-blocks-override")
        assert server.argv[at + 1] == "512"
    assert "--kv-transfer-config" in alone.servers[0].argv
    assert "--kv-transfer-config" not in plain.servers[0].argv


def test_it_can_be_expected_to_fail(tmp_path: Path) -> None:
    plan = planned(tmp_path, expect=[{"match": {"task": "long", "pass": 2}, "xfail": {"reason": "known"}}])
    assert {(c.labels["task"], c.labels["pass"], bool(c.baselines)) for c in plan.cells if c.xfail} == {
        ("long", 2, True)
    }


def test_two_servers_are_not_one(tmp_path: Path) -> None:
    sweep = yaml.safe_load((ROOT / "configs" / "passes_offloading.yaml").read_text())
    sweep["cell"]["decode"]["instances"] = 2
    with pytest.raises(ConfigError, match=re.escape("set decode.instances to 1")):
        planned(tmp_path, **sweep)


def test_one_server_and_two_sides_are_one_axis(tmp_path: Path) -> None:
    kv = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}
    sweep = yaml.safe_load((ROOT / "configs" / "passes_offloading.yaml").read_text())
    sweep["cell"] |= {"kv_transfer_config": kv}
    plan = planned(tmp_path, cell=sweep["cell"], matrix={"prefill.instances": [0, 1]}, baseline="none")
    assert {(c.labels["prefill_instances"], c.kind) for c in plan.cells} == {(0, "monolithic"), (1, "pd")}
