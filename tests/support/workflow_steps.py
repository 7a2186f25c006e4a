"""Steps of the workflow files, run as they stand in a folder that is laid out as a job has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def step(workflow: str, job: str, name: str) -> str:
    """The commands of a step, word for word."""
    found = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text(encoding="utf-8"))
    return next(str(s["run"]) for s in found["jobs"][job]["steps"] if s.get("name") == name)


def checkout(folder: Path, sweep: dict[str, Any]) -> None:
    """The rig as a job has it: its scripts, its environment, and a sweep file, configs/case.yaml."""
    (folder / "configs").mkdir(parents=True)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    (folder / "configs" / "case.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))


def bash(commands: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As GitHub runs a step: bash -e. What it started ends with it, also when the test runs out of time."""
    out, err = subprocess.PIPE, subprocess.PIPE
    argv = ["bash", "-e", "-c", commands]
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, process_group=0
    ) as process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
