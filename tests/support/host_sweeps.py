"""Sweeps whose servers run on other machines, which are this one by other names."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rig.deploy.guard import stat_of

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
PATIENCE_S = 240
MARK = "PDRIG_TEST_MARK"


@dataclass
class Run:
    """`pdrig sweep` in a process of its own; `mark` is in the environment of all of its servers."""

    folder: Path
    process: subprocess.Popen[str]
    mark: str
    code: int = -1
    out: str = ""
    err: str = ""

    def finish(self, patience_s: float = PATIENCE_S) -> Run:
        self.out, self.err = self.process.communicate(timeout=patience_s)
        self.code = self.process.returncode
        return self

    def cells(self) -> dict[str, Json]:
        """Results by kind; there is one of each."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("runs/*/cells/*/cell.json")]
        return {cell["kind"]: cell for cell in found}

    def failure(self) -> str:
        """Why the P/D cell failed: one line, said once for the cell."""
        cell = self.cells()["pd"]
        line = str(cell["failure"])
        assert cell["status"] == "failed" and "\n" not in line
        assert self.err.count(f"{cell['cell_id']}: failed, {line}") == 1
        return line

    def deployments(self) -> dict[str, Json]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("runs/*/deployments/*/deployment.json")]
        return {deployment["kind"]: deployment for deployment in found}

    def log(self, server: str) -> str:
        return "".join(path.read_text() for path in self.folder.glob(f"runs/*/deployments/*/logs/{server}.log"))

    def answers(self) -> int:
        """How many requests of the P/D cell are on disk."""
        paths = self.folder.glob("runs/*/cells/*-1p1d-*/requests.jsonl")
        return sum(len(path.read_text().splitlines()) for path in paths)

    def servers(self) -> set[int]:
        """Living processes of this sweep's servers, wherever they were started."""
        wanted = f"{MARK}={self.mark}".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environ = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                stat = stat_of(int(entry.name))
                if wanted in environ and stat is not None and stat.state not in "ZX":
                    found.add(stat.pid)
        return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago: below those of outgoing connections, and none of a sweep in configs/."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20000, 25000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.add(port)
    return sorted(found)


class Sweeps:
    """Makes and starts sweeps of two simulated servers, prefill on the first host and decode on the second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Run] = []

    @staticmethod
    def file(hosts: Sequence[Json], **top: Any) -> Json:
        prefill, prefill_side, decode, decode_side, proxy, alone = free_ports(6)
        settings = {"max_num_seqs": 64, **top.pop("sim", {})}
        return {
            "name": "hosts",
            "models": {"sim": {"id": "sim/tiny", "served_name": "sim-tiny"}},
            "engines": {
                "sim": {
                    "command": ["{rig_python}", "-m", "rig.sim"],
                    "device": "cpu",
                    "env": {"PDRIG_SIM_CONFIG": json.dumps(settings)},
                }
            },
            "hosts": {"one": hosts[0], "two": hosts[1]},
            "cell": {
                "model": "sim",
                "engine": "sim",
                "async_scheduling": False,
                "kv_transfer_config": {
                    "kv_connector": "NixlConnector",
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "fail",
                    "kv_connector_extra_config": {"kv_lease_duration": 5},
                },
                "both": {"listen": "0.0.0.0", "side_channel_host": "{hostname}", "args": {"max-model-len": 2048}},
                "prefill": {"host": "one", "port": prefill, "side_channel_port": prefill_side},
                "decode": {"host": "two", "port": decode, "side_channel_port": decode_side},
                "proxy": {"port": proxy},
                "task": "tiny",
            },
            "tasks": {
                "tiny": {
                    "task": "gsm-tiny",
                    "limit": 40,
                    "shots": 2,
                    "max_tokens": 64,
                    "concurrency": 8,
                    "warmup": 0,
                    "canaries": 0,
                }
            },
            "baseline": {"monolithic": {"port": alone}},
            "gates": {"max_accuracy_drop": 0.1},
            "rerun": False,
            "limits": {"start_s": 120, "check_s": 60, "hang_s": 60, "stop_s": 5},
            **top,
        }

    def start(self, sweep: Json, *before: str, **env: str) -> Run:
        """`before` wraps the command, as salloc does."""
        folder = self.folder / f"sweep-{len(self.started)}"
        folder.mkdir()
        mark = uuid.uuid4().hex
        sweep["cell"]["both"].setdefault("env", {})[MARK] = mark
        config = folder / "sweep.yaml"
        config.write_text(yaml.safe_dump(sweep, sort_keys=False))
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "rig", "sweep", str(config), "--out", str(folder / "runs")],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith(("PDRIG_", "VLLM_", "SLURM_"))} | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(Run(folder, process, mark))
        return self.started[-1]


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    """None outlives the test."""
    made = Sweeps(tmp_path)
    yield made
    for run in made.started:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for a condition that other processes bring about; what it came to."""

    def wait(condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, "never came about"
            time.sleep(0.05)
        return value

    return wait
