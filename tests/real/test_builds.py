"""Two builds of the real engine held against each other by the pull request workflow's own commands."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from demo_sweep import demo_sweep
from workflow_steps import bash, checkout, step

from rig.faults.control import ENVIRONMENT, Control, Fault, When, read_hits

LONG_PROMPT = 310
"""Tokens: about a quarter of the questions and half of the canaries are at least as long."""

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]


def build(venv: Path, engine: Path, control: Path | None) -> None:
    """An environment of its own with the packages of another; its engines plant what a control file says."""
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").symlink_to(engine / "lib")
    (venv / "pyvenv.cfg").write_text((engine / "pyvenv.cfg").read_text())
    (venv / "bin" / "python").symlink_to((engine / "bin" / "python").resolve())
    planted = f"export {ENVIRONMENT}={shlex.quote(str(control))}\n" if control else ""
    vllm = venv / "bin" / "vllm"
    vllm.write_text(f'#!/bin/sh\n{planted}exec {shlex.quote(str(engine / "bin" / "vllm"))} "$@"\n')
    vllm.chmod(0o755)
    record = json.loads((engine / "pdrig-engine.json").read_text())
    (venv / "pdrig-engine.json").write_text(json.dumps({**record, "source": venv.name, "commit": f"c0ffee{venv.name}"}))


@pytest.mark.parametrize("planted", [True, False], ids=["a fault in the PR build", "the same build twice"])
def test_two_builds_by_the_commands_of_the_pull_request_workflow(tmp_path: Path, engine: Path, planted: bool) -> None:
    checkout(tmp_path / "rig", demo_sweep())
    control = tmp_path / "faults.json"
    Control((Fault("late_zeroing", 1.0, when=When(min_prompt_tokens=LONG_PROMPT)),)).write(control)
    build(tmp_path / "engines" / "base", engine, None)
    build(tmp_path / "engines" / "pr", engine, control if planted else None)
    env = {**os.environ, "CONFIG": "configs/case.yaml", "CELL": "*", "PDRIG_DATA": ""}
    done = bash(step("pr.yaml", "compare", "compare"), tmp_path, env)
    comment = (tmp_path / "comparison" / "comment.md").read_text(encoding="utf-8")
    assert done.returncode == (1 if planted else 0), done.stderr + comment
    (run,) = (tmp_path / "comparison" / "runs").iterdir()
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in run.glob("cells/*/cell.json")]
    (under_test,) = [c for c in cells if c["labels"]["engine"] == "pr" and c["rerun_of"] is None]
    assert under_test["evidence"]["pd_exercised"] is True
    first, said = comment.splitlines()[0], comment.partition("### What to look at")[2].partition("\n### ")[0]
    if planted:
        assert under_test["verdict"]["state"] == "regression"
        assert first.startswith(f"**Worse than the baseline:** `{under_test['cell_id']}` (damage)"), first
        assert {hit.fault for hit in read_hits(control)} == {"late_zeroing"}
        assert "**damage**: " in said and "canaries lost the code that their prompt states" in said
        assert "moved a token's log probability by more than" in said and "more than that noise explains" in said
        assert "**where**: Damaged outputs sit in prompts of " in said, said
        assert "--cell " in said and "pdrig sweep" in said
    else:
        assert under_test["verdict"]["state"] == "pass"
        assert first == "**1 cell is shown to be no worse than the baseline by the margin.**"
        assert not said and not read_hits(control)
    assert "| base | `0.32.0` | `c0ffeebase` | `base` |" in comment
    assert "| pr | `0.32.0` | `c0ffeepr` | `pr` |" in comment
