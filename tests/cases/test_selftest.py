"""The self-test on the simulated engine: every fault is caught, clean runs pass, and it can be gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.faults.control import FAULTS
from rig.selftest.cases import cases

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def config(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """configs/selftest_sim.yaml on free ports."""
    sweep = yaml.safe_load((kit.root / "configs" / "selftest_sim.yaml").read_text())
    ports = kit.free_ports(5)
    for role, first in (("prefill", 0), ("decode", 2)):
        sweep["cell"][role] |= {"port": ports[first], "side_channel_port": ports[first + 1]}
    sweep["cell"]["proxy"]["port"] = ports[4]
    path: Path = tmp_path_factory.mktemp("selftest") / "selftest.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def selftest(kit: Any, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rig", "selftest", "--short", "--config", str(config), *options]
    return subprocess.run(command, cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def done(kit: Any, config: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    found = selftest(kit, config, "--out", str(config.parent / "out"))
    (run,) = (config.parent / "out").iterdir()
    return found, run


def test_every_fault_is_caught_and_clean_runs_pass(
    kit: Any, done: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    found, run = done
    assert found.returncode == 0, found.stdout + found.stderr
    planted = [case for case in cases(short=True) if case.fault is not None]
    assert {case.fault for case in planted} == FAULTS.keys()
    last = f"{len(planted)} of {len(planted)} planted faults caught; of 2 clean runs 0 alarmed and 2 passed"
    assert last in found.stdout and (run / "selftest.md").read_text().startswith(last)
    for case in planted:
        folder = run / "cells" / case.name
        result = json.loads((folder / "cell.json").read_text())
        (hits,) = folder.glob("hits*.jsonl")
        struck, asked = ({row["sample_id"] for row in kit.rows(p)} for p in (hits, folder / "requests.jsonl"))
        assert result["verdict"]["state"] == "regression" and struck and struck <= asked
    assert len(list((run / "deployments").iterdir())) == 3, "servers are launched three times, not once a fault"


def test_what_is_finished_is_not_asked_again(
    kit: Any, config: Path, done: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    first, run = done
    again = selftest(kit, config, "--resume", str(run))
    assert again.returncode == 0 and again.stdout == first.stdout
    assert "warming up" not in again.stderr and len(list((run / "deployments").iterdir())) == 3


def test_only_a_self_test_of_the_same_kind_is_resumed(
    kit: Any, config: Path, done: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    _, run = done
    command = [sys.executable, "-m", "rig", "selftest", "--config", str(config), "--resume", str(run)]
    whole = subprocess.run(command, cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True, check=False)
    assert whole.returncode == 2 and whole.stderr.startswith(f"pdrig: {run} is another self-test: give the same")
    command = [sys.executable, "-m", "rig", "sweep", str(config), "--resume", str(run)]
    swept = subprocess.run(command, cwd=kit.root, env=kit.clean_env(), capture_output=True, text=True, check=False)
    assert swept.returncode == 2 and "was made from another sweep" in swept.stderr
