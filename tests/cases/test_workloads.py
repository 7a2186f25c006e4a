"""Workloads through whole sweeps on simulated engines: what is asked, what is measured, and what a fault does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TASKS: dict[str, dict[str, Any]] = {
    "long": {
        "task": "prefill-heavy",
        "words": 700,
        "shared": 0.5,
        "limit": 160,
        "divergence": "logprobs",
        "concurrency": 16,
    },
    "needles": {"task": "needles", "words": 300, "limit": 160, "depths": [0, 50, 100]},
    "edges": {"task": "boundaries", "questions": "gsm-tiny", "limit": 150, "multiples": 3},
    "ledger": {"task": {"file": "ledger.yaml"}},
}


def sweep_of(kit: Any, folder: Path, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """One P/D cell and one monolithic cell a task."""
    configs = kit.root / "configs" / "tasks"
    sweep: dict[str, Any] = kit.template(sim={"data": str(configs / "ledger.jsonl")})
    common = {"concurrency": 8, "warmup": 0, "canaries": 0}
    sweep["tasks"] = {label: {**common, **task} for label, task in TASKS.items()}
    sweep["tasks"]["ledger"]["task"] = {"file": str(configs / "ledger.yaml")}
    sweep["cell"]["task"] = "long"
    sweep["cell"]["both"]["args"]["max-model-len"] = 8192
    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps(faults)
    sweep["matrix"] = {"task": list(TASKS)}
    sweep["gates"] = {"max_accuracy_drop": 0.02}
    sweep["noise_floor"] = True
    return sweep


@pytest.fixture(scope="module")
def clean(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_sweep(sweep_of(kit, tmp_path_factory.mktemp("clean"), [])).finish()


@pytest.fixture(scope="module")
def faulty(kit: Any, start_sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Damage on decode where a prompt ends with a block, and in the prompts that nobody can score."""
    when = {"side": "decode", "transferred": True}
    faults: list[dict[str, Any]] = [
        {"fault": "wrong_answer", "when": {**when, "prompt_multiple_of": 16, "prompt_contains": "Answer:"}},
        {"fault": "wrong_answer", "rate": 0.2, "when": {**when, "prompt_contains": "Notebook"}},
    ]
    return start_sweep(sweep_of(kit, tmp_path_factory.mktemp("faulty"), faults)).finish()


def by_task(sweep: Any, kind: str = "pd") -> dict[str, Any]:
    return {c.result["labels"]["task"]: c for c in sweep.by_id.values() if c.result["kind"] == kind}


def groups(cell: Any) -> dict[str, tuple[int, int]]:
    return {g["name"]: (g["correct"], g["scored"]) for g in cell.result["groups"]["groups"]}


def test_sound_engines_pass_every_workload(clean: Any) -> None:
    assert clean.code == 0, clean.out + clean.err
    assert {task: cell.state for task, cell in by_task(clean).items()} == dict.fromkeys(TASKS, "pass")


def test_prompts_without_an_answer_have_no_accuracy(clean: Any) -> None:
    cell = by_task(clean)["long"]
    assert cell.result["accuracy"]["value"] is None and cell.result["counts"]["unscored"] == 160
    (comparison,) = cell.result["comparisons"]
    assert (comparison["delta"], comparison["n"], comparison["output_agreement"]) == (None, 160, 1.0)
    assert "accuracy" not in cell.channels and "no right answers" in cell.why
    assert min(r.prompt_tokens for r in cell.records) > 700
    assert cell.result["throughput"]["total_tokens_per_s"] > cell.result["throughput"]["output_tokens_per_s"]


def test_needles_are_told_apart_by_depth(clean: Any) -> None:
    assert groups(by_task(clean)["needles"]) == {"0 %": (54, 54), "50 %": (53, 53), "100 %": (53, 53)}
    assert "by depth: 0 % 54/54, 50 % 53/53, 100 % 53/53" in clean.out


def test_edges_are_where_the_engine_counts_them(clean: Any) -> None:
    cell = by_task(clean)["edges"]
    assert groups(cell) == dict.fromkeys(("-1", "0", "+1"), (50, 50))
    remainders = {int(r.sample_id[-4:]): r.prompt_tokens % 16 for r in cell.records}
    assert len(remainders) == 150 and all(left == (15, 0, 1)[i % 3] for i, left in remainders.items())
    assert len({r.prompt_tokens for r in cell.records}) > 6
    whole = by_task(clean, "monolithic")["edges"]
    assert {r.sample_id: r.prompt_sha256 for r in whole.records} == {r.sample_id: r.prompt_sha256 for r in cell.records}


def test_a_stated_task_is_asked_like_any_other(clean: Any) -> None:
    cell = by_task(clean)["ledger"]
    task = cell.result["task"]
    assert (task["name"], task["version"], task["scorer"], task["n"]) == ("ledger", "1", "robust", 200)
    assert cell.result["counts"]["correct"] == 200
    told = json.loads((cell.folder.parents[1] / "run.json").read_text())
    (planned,) = (c["task"] for c in told["resolved"]["cells"] if c["id"] == cell.folder.name)
    assert planned["file"].endswith("ledger.yaml") and len(planned["file_sha256"]) == 64


def test_damage_at_the_edge_of_a_block_is_found_and_placed(faulty: Any) -> None:
    cell = by_task(faulty)["edges"]
    assert cell.state == "regression"
    assert groups(cell) == {"-1": (50, 50), "0": (0, 50), "+1": (50, 50)}
    assert "prompts of k x 16 tokens" in cell.why


def test_damage_of_outputs_that_nobody_can_score_is_found(faulty: Any) -> None:
    cell = by_task(faulty)["long"]
    struck = cell.struck("wrong_answer")
    assert 10 < len(struck) < 60
    assert (cell.state, cell.channels[0]) == ("regression", "damage")
    (comparison,) = cell.result["comparisons"]
    assert comparison["first_divergence"]["damaged"] == len(struck)


def test_a_prompt_that_does_not_fit_is_no_verdict_on_the_deployment(kit: Any, start_sweep: Any, tmp_path: Path) -> None:
    sweep = sweep_of(kit, tmp_path, [])
    sweep["matrix"] = {"task": ["edges"]}
    sweep["tasks"] = {"edges": sweep["tasks"]["edges"]}
    sweep["cell"]["both"]["args"]["max-model-len"] = 200
    sweep["cell"]["task"] = "edges"
    done = start_sweep({**sweep, "baseline": "none", "noise_floor": False}).finish()
    assert done.code == 3, done.out + done.err
    (cell,) = done.by_id.values()
    assert cell.state == "invalid" and "It cannot be asked: boundaries:" in cell.why and "max-model-len" in cell.why


def test_eval_asks_workloads_and_files_of_any_address(kit: Any, tmp_path: Path) -> None:
    plan = next(d for d in kit.planned(sweep_of(kit, tmp_path, []), tmp_path).deployments if d.kind == "monolithic")
    with kit.engines(plan, tmp_path):
        for task, said in (("needles", "task needles v1, 9 questions"), ("ledger", "task ledger v1, 9 questions")):
            name = str(kit.root / "configs" / "tasks" / "ledger.yaml") if task == "ledger" else task
            command = [sys.executable, "-m", "rig", "eval", plan.servers[0].url, "--task", name, "--limit", "9"]
            done = subprocess.run(
                [*command, "--out", str(tmp_path / task)],
                cwd=kit.root,
                env=kit.clean_env(),
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert said in done.stdout and "Accuracy: 1.000" in done.stdout


def passes(kit: Any, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Two passes over 40 questions on one server with an offload storage; its pool holds a few prompts at a time."""
    sweep: dict[str, Any] = kit.template(task={"passes": 2, "limit": 40, "shots": 4, "concurrency": 4})
    sweep["cell"]["kv_transfer_config"] = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    sweep["cell"]["prefill"] = {"instances": 0}
    sweep["cell"]["both"]["args"] |= {"enable-prefix-caching": True, "num-gpu-blocks-override": 64}
    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps(faults)
    sweep["baseline"] = [sweep["baseline"], {"cell": {"pass": 1}}]
    return sweep


def test_passes_through_a_storage_have_a_row_each_and_their_own_hits(kit: Any, start_sweep: Any) -> None:
    done = start_sweep(passes(kit, [])).finish()
    assert done.code == 0, done.out + done.err
    found = {(c.result["labels"]["connector"], c.result["labels"]["pass"]): c for c in done.by_id.values()}
    assert set(found) == {(name, k) for name in (None, "OffloadingConnector") for k in (1, 2)}
    cold, reuse = (found["OffloadingConnector", k] for k in (1, 2))
    plain = [found[None, k].result["sources"] for k in (1, 2)]
    assert (cold.state, reuse.state) == ("pass", "pass")
    prompt = sum(r.prompt_tokens for r in reuse.records)
    for cell in found.values():
        assert sum(cell.result["sources"].values()) == prompt
    # Blocks of the first pass have overflown: the pool alone has next to nothing of them left, the storage has all.
    assert cold.result["sources"]["loaded"] == 0 and plain[1]["loaded"] == 0
    assert plain[1]["cached"] < 0.1 * prompt
    assert reuse.result["sources"]["loaded"] > 0.8 * prompt
    assert "loaded)" in done.out and "cache" in done.out
    assert "A connector loaded" in reuse.why and "A connector loaded" not in cold.why
    assert {c["baseline"] for c in reuse.result["comparisons"]} == {
        found[None, 2].folder.name,
        cold.folder.name,
    }


def test_a_second_pass_that_loads_nothing_is_no_pass_of_the_storage(kit: Any, start_sweep: Any) -> None:
    sweep = passes(kit, [])
    sweep["cell"]["both"]["args"]["num-gpu-blocks-override"] = 4096
    done = start_sweep(sweep).finish()
    assert done.code == 3, done.out + done.err
    found = {(c.result["labels"]["connector"], c.result["labels"]["pass"]): c for c in done.by_id.values()}
    assert found["OffloadingConnector", 1].state == "pass"
    reuse = found["OffloadingConnector", 2]
    assert (reuse.state, reuse.result["status"]) == ("invalid", "invalid")
    assert "Pass 2 loaded nothing from the connector's storage" in reuse.why
    assert "were still in the server's own cache; make that smaller" in " ".join(done.out.split())
    assert found[None, 2].state is None


def test_cache_hits_are_those_of_the_first_asking(kit: Any, start_sweep: Any, tmp_path: Path) -> None:
    sweep = sweep_of(kit, tmp_path, [])
    sweep["tasks"] = {"long": {**TASKS["long"], "shared": 0, "limit": 30, "canaries": 0, "warmup": 0}}
    sweep["matrix"] = {"task": ["long"]}
    sweep["cell"]["both"]["args"]["enable-prefix-caching"] = True
    done = start_sweep(sweep).finish()
    for cell in done.by_id.values():
        sources = cell.result["sources"]
        first = sum(r.prompt_tokens for r in cell.records if r.repeat == 0)
        assert sum(sources.values()) == first and sources["cached"] < 0.1 * first, cell.result["cell_id"]
    whole = by_task(done, "monolithic")["long"]
    assert max(r.repeat for r in whole.records) == 1 and whole.result["noise_floor"] is not None
