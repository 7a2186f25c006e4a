"""Servers on other machines: the launcher's options in the plan, and the two-host cell as it is shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rig.config import parse_config
from rig.errors import ConfigError
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_text import format_plan
from rig.planned import RemotePlan, SweepPlan

HYBRID = Path(__file__).resolve().parents[2] / "configs" / "hybrid_ssm.yaml"


def two_hosts(more: str) -> str:
    """configs/hybrid_ssm.yaml with its TWO HOSTS lines in place of those for one."""
    text = HYBRID.read_text(encoding="utf-8")
    start, end = text.index('  "model, prefill.tp, decode.tp":'), text.index("  # TWO HOSTS: in place")
    lines = text[text.index('  # "model, prefill.tp, decode.tp, prefill.host') :].splitlines()[:2]
    return text[:start] + "\n".join(line.replace("# ", "", 1) for line in lines) + "\n" + text[end:] + more


def planned(text: str) -> SweepPlan:
    return plan_sweep(parse_config(text, str(HYBRID), HYBRID.parent), Machine(hostname="login"))


@pytest.mark.parametrize(
    ("more", "remote"),
    [
        ("\nlauncher: slurm", RemotePlan()),
        (
            "\nlauncher: slurm\nslurm: {allocate: [-N2, --gpus-per-node=4], srun: [--gpus=4], python: py3}",
            RemotePlan(("--gpus=4",), ("-N2", "--gpus-per-node=4"), "py3"),
        ),
        ("\nlauncher: ssh\nssh: {options: [-l, me]}", RemotePlan(("-l", "me"))),
    ],
)
def test_the_two_host_cell_is_started_by_the_rig(more: str, remote: RemotePlan) -> None:
    plan = planned(two_hosts(more))
    assert {d.remote for d in plan.deployments} == {remote}
    assert not any("must be started" in note for note in plan.notes)
    prefill, decode = next(d for d in plan.deployments if d.kind == "pd").servers
    assert (prefill.host, decode.host) == ("prefill-host", "decode-host")
    assert decode.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "decode-host"
    assert all(cell.rerun for cell in plan.cells if cell.kind == "pd" and not cell.xfail)
    assert "http://decode-host:8200, GPU 0,1,2,3, side channel 6551, on decode-host" in format_plan(plan, "table")


def test_without_a_launcher_a_person_starts_them() -> None:
    assert any("must be started on decode-host" in note for note in planned(two_hosts("")).notes)


def test_a_machine_may_have_another_name_for_slurm_and_none_before_the_allocation() -> None:
    text = two_hosts("\nlauncher: slurm")
    text = text.replace("{address: prefill-host, gpus: 4}", "{address: 10.0.0.1, node: n1, gpus: 4}")
    text = text.replace("{address: decode-host, gpus: 4}", '{address: "{node1}", gpus: 4}')
    prefill, decode = next(d for d in planned(text).deployments if d.kind == "pd").servers
    assert (prefill.node, prefill.url, decode.node, decode.url) == (
        "n1",
        "http://10.0.0.1:8100",
        None,
        "http://{node1}:8200",
    )
    assert decode.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "{node1}"


def test_options_of_another_launcher() -> None:
    with pytest.raises(ConfigError, match="`ssh` is for `launcher: ssh`"):
        planned(two_hosts("\nlauncher: slurm\nssh: {python: python3.12}"))


DOCS = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"
BLOCKS = [text for text in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.S) if text.startswith("launcher")]


@pytest.mark.parametrize("block", BLOCKS, ids=["slurm", "ssh", "attach"])
def test_the_documented_blocks_plan(block: str) -> None:
    """Laid over the two-host cell; what runs already cannot be an axis, so of that one cell is asked."""
    data = yaml.safe_load(two_hosts("")) | yaml.safe_load(block)
    if data["launcher"] == "attach":
        del data["matrix"], data["hosts"], data["expect" if "expect" in data else "reference"]
    plan = planned(yaml.safe_dump(data, sort_keys=False))
    assert {d.launcher for d in plan.deployments} == {data["launcher"]}
    assert not any("must be started" in note for note in plan.notes)
    hosts = {s.host for d in plan.deployments for s in d.servers}
    assert hosts == {host["address"] for host in data.get("hosts", {}).values()}
