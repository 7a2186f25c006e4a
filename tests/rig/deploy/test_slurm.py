"""What the Slurm launcher asks for, without a Slurm; tests/rig/deploy/hosts runs it against a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rig.deploy import require_startable, slurm
from rig.errors import UsageError
from rig.planned import DeploymentPlan, ProxyPlan, RemotePlan, ServerPlan


def server(host: str | None, node: str | None = None) -> ServerPlan:
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host or "box"}
    return ServerPlan(
        "decode-0",
        "decode",
        ("vllm", "--host", host or ""),
        env,
        8200,
        f"http://{host}:8200",
        "m",
        host=host,
        node=node,
    )


def plan(*servers: ServerPlan, **fields: object) -> DeploymentPlan:
    made = DeploymentPlan("d", "pd", "slurm", "m", None, servers, remote=RemotePlan())
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's programs by name; scontrol knows two nodes."""
    for name in slurm.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    return tmp_path


def test_the_allocation_it_was_started_in(programs: Path) -> None:
    assert slurm.allocation() == slurm.Allocation("7", ("n1", "n2"))
    require_startable(plan(server("n1"), server("10.0.0.2", "n2")))


def test_without_an_allocation(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UsageError, match=r"start within salloc or sbatch, or give `slurm\.allocate`"):
        require_startable(plan(server("n1")))


def test_without_slurm(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(UsageError, match="needs srun, scontrol, squeue, scancel, sinfo on PATH"):
        require_startable(plan(server("n1")))


def test_a_node_list_that_scontrol_does_not_take(programs: Path) -> None:
    (programs / "scontrol").write_text("#!/bin/sh\necho Invalid hostlist >&2\nexit 1\n")
    with pytest.raises(UsageError, match=r"scontrol show hostnames n\[1-2\] failed: Invalid hostlist"):
        slurm.allocation()


def test_a_host_outside_of_the_allocation(programs: Path) -> None:
    with pytest.raises(UsageError, match=r"decode-0 is planned for n3, which is none of the nodes of job 7 \(n1, n2\)"):
        require_startable(plan(server("n3")))


def test_nodes_by_number() -> None:
    proxy = ProxyPlan(("python", "--decode", "http://{node1}:8200"), 8000, "http://127.0.0.1:8000")
    found = slurm.placed(plan(server("{node1}", "{node1}"), server(None), proxy=proxy), ["n1", "n2"])
    first, second = found.servers
    assert (first.host, first.node, first.url, first.argv[-1]) == ("n2", "n2", "http://n2:8200", "n2")
    assert first.env == {"VLLM_NIXL_SIDE_CHANNEL_HOST": "n2"} and second.host is None
    assert found.proxy is not None and found.proxy.argv[-1] == "http://n2:8200"
    with pytest.raises(UsageError, match=r"\{node1\} is wanted, and the allocation has 1 nodes"):
        slurm.placed(plan(server("{node1}")), ["n1"])


def test_a_step_is_told_all_and_inherits_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_CONF", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "HF_TOKEN"):
        monkeypatch.setenv(name, "x")
    srun = slurm.Srun("7", "python3", ("--gpus=4",))
    command = srun.command(server("10.0.0.2", "n2"), "pdrig-1")
    assert {"--jobid=7", "--nodelist=n2", "--overlap", "--job-name=pdrig-1"} < set(command)
    assert command.index("--gpus=4") == command.index("python3") - 1
    kept = {name for name in srun.environment() if name.startswith(("SLURM_", "CUDA_", "HF_T"))}
    assert kept == {"SLURM_CONF", "SLURM_JOB_ID", "HF_TOKEN"}
