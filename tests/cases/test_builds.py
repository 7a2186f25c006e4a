"""Two builds held against each other, and the nightly sweep, by the commands of the workflows as they stand."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from workflow_steps import bash, checkout, step

pytestmark = pytest.mark.timeout(400)

QUESTIONS = 160
"""Enough for a pass at a margin of 0.02 when no answer flips."""

SWAPPED = [{"fault": "swapped", "rate": 0.3, "when": {"side": "decode", "transferred": True}}]
"""KV of one request reaches another, on decode, after a hand-off."""


def simulated(venv: Path, faults: Any = None) -> None:
    """An environment whose `vllm serve` is the simulated engine, with faults of its own."""
    (venv / "bin").mkdir(parents=True)
    planted = f"export PDRIG_SIM_FAULTS={shlex.quote(json.dumps(faults))}\n" if faults else ""
    script = venv / "bin" / "vllm"
    script.write_text(f'#!/bin/sh\nshift\n{planted}exec {shlex.quote(sys.executable)} -m rig.sim "$@"\n')
    script.chmod(0o755)
    (venv / "pdrig-engine.json").write_text(
        json.dumps({"source": venv.name, "commit": f"c0ffee{venv.name}", "versions": {"vllm": "0.32.0"}})
    )


def a_sweep(kit: Any) -> dict[str, Any]:
    task = {"limit": QUESTIONS, "canaries": 40, "divergence": "logprobs", "concurrency": 16}
    return {**kit.template(task=task), "gates": {"max_accuracy_drop": 0.02}, "noise_floor": True}


@pytest.mark.parametrize("faults", [SWAPPED, None], ids=["a fault in the PR build", "the same build twice"])
def test_two_builds_by_the_commands_of_the_pull_request_workflow(tmp_path: Path, kit: Any, faults: Any) -> None:
    checkout(tmp_path / "rig", a_sweep(kit))
    simulated(tmp_path / "engines" / "base")
    simulated(tmp_path / "engines" / "pr", faults)
    summary = tmp_path / "summary.md"
    env = {"CONFIG": "configs/case.yaml", "CELL": "*", "PDRIG_DATA": "", "GITHUB_STEP_SUMMARY": str(summary)}
    done = bash(step("pr.yaml", "compare", "compare"), tmp_path, {**kit.clean_env(), **env})
    comment = (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8")
    assert done.returncode == (1 if faults else 0), done.stderr + comment
    (run,) = (tmp_path / "comparison" / "runs").iterdir()
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in run.glob("cells/*/cell.json")]
    under_test = next(c for c in cells if c["labels"]["engine"] == "pr" and c.get("rerun_of") is None)
    reasons = under_test["verdict"]["reasons"]
    told = " ".join(r["text"] for r in reasons if r["channel"] == "damage")
    if faults:
        assert under_test["verdict"]["state"] == "regression"
        assert "canaries came back with the code of another request" in told
        assert "outputs leave those of" in told
        assert under_test["cell_id"] in comment.splitlines()[0]
        assert "canaries came back with the code of another request" in comment
    else:
        assert under_test["verdict"]["state"] == "pass"
        assert comment.startswith("**1 cell is shown to be no worse than the baseline by the margin.**\n")
    assert "| base | `0.32.0` | `c0ffeebase` |" in comment
    assert "| pr | `0.32.0` | `c0ffeepr` |" in comment
    assert (run / "junit.xml").is_file()
    again = bash(step("pr.yaml", "compare", "compare").rstrip() + " --resume", tmp_path, {**kit.clean_env(), **env})
    assert again.returncode == done.returncode, again.stderr
    assert list((tmp_path / "comparison" / "runs").iterdir()) == [run]
    assert under_test["cell_id"] in summary.read_text(encoding="utf-8")


def test_a_sweep_file_that_is_wrong_is_said_in_the_comment(tmp_path: Path, kit: Any) -> None:
    checkout(tmp_path / "rig", {**a_sweep(kit), "matrix": {"engine": ["sim"]}})
    env = {"CONFIG": "configs/case.yaml", "CELL": "*", "PDRIG_DATA": ""}
    done = bash(step("pr.yaml", "compare", "compare"), tmp_path, {**kit.clean_env(), **env})
    comment = (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8")
    assert done.returncode == 2, done.stderr
    assert comment.startswith("**The two builds could not be compared** (exit 2).")
    assert "varies `engine` itself" in comment


def test_an_environment_without_an_engine_is_said_in_the_comment(tmp_path: Path, kit: Any) -> None:
    checkout(tmp_path / "rig", a_sweep(kit))
    env = {"CONFIG": "configs/case.yaml", "CELL": "*", "PDRIG_DATA": ""}
    done = bash(step("pr.yaml", "compare", "compare"), tmp_path, {**kit.clean_env(), **env})
    comment = (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8")
    assert done.returncode not in (0, 1), done.stderr
    assert "engines/base" in comment


def test_the_night_goes_on_where_it_was_and_is_held_against_stored_baselines(tmp_path: Path, kit: Any) -> None:
    sweep = a_sweep(kit)
    rig, state = tmp_path / "rig", tmp_path / "state"
    checkout(rig, sweep)
    names = ("CONFIG", "STATE", "KEY", "CELL", "PDRIG_DATA")
    env = dict(zip(names, ("configs/case.yaml", str(state), "night-1", "*", ""), strict=True))
    commands = step("nightly-gpu.yaml", "sweep", "sweep, stored baselines, trend")

    def night(key: str) -> tuple[int, str]:
        done = bash(commands, rig, {**kit.clean_env(), **env, "KEY": key})
        return done.returncode, (state / key / "nightly.md").read_text(encoding="utf-8")

    code, text = night("night-1")
    assert code == 0, text
    assert "No baseline is stored" in text
    (run,) = (p.parent for p in (state / "night-1").glob("*/run.json"))
    files = {p: p.read_bytes() for p in run.glob("cells/*/requests.jsonl")}

    save = [sys.executable, "-m", "rig", "baseline", "save", str(run), "--out", str(rig / "results" / "baselines")]
    subprocess.run(save, cwd=kit.root, check=True, capture_output=True)
    code, text = night("night-1")
    assert code == 0, text
    assert "### Against sim.tiny.json" in text
    assert [p.parent for p in (state / "night-1").glob("*/run.json")] == [run]
    assert {p: p.read_bytes() for p in run.glob("cells/*/requests.jsonl")} == files

    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps(SWAPPED)
    (rig / "configs" / "case.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    code, text = night("night-2")
    assert code == 1, text
    assert text.splitlines()[0].startswith("**")
    assert "2 stored runs" in text, "the trend"
    assert "canaries came back with the code of another request" in text
