"""Sweeps whose servers run on other machines, which are this one by other names."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from sim_sweeps import sweep_file
from sweep_process import Json, SweepProcess, end

from rig.deploy.guard import stat_of

PATIENCE_S = 240
MARK = "PDRIG_TEST_MARK"


@dataclass
class Run(SweepProcess):
    """A sweep on other machines; `mark` is in the environment of all of its servers."""

    mark: str = ""

    def finish(self, patience_s: float = PATIENCE_S) -> Self:
        return super().finish(patience_s)

    def cells(self) -> dict[str, Json]:
        """Results by kind; there is one of each."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("runs/*/cells/*/cell.json")]
        return {cell["kind"]: cell for cell in found}

    def info(self) -> Json:
        """What run.json says."""
        (path,) = self.folder.glob("runs/*/run.json")
        return dict(json.loads(path.read_text()))

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
                if wanted in environ and stat is not None and stat.lives:
                    found.add(stat.pid)
        return found


class Sweeps:
    """Makes and starts sweeps of two simulated servers, prefill on the first host and decode on the second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Run] = []

    @staticmethod
    def file(hosts: Sequence[Json], **top: Any) -> Json:
        sweep = sweep_file(sim=top.pop("sim", {}))
        sweep["hosts"] = {"one": hosts[0], "two": hosts[1]}
        sweep["cell"]["both"] |= {"listen": "0.0.0.0", "side_channel_host": "{hostname}"}
        sweep["cell"]["prefill"]["host"], sweep["cell"]["decode"]["host"] = "one", "two"
        sweep["limits"] = {"start_s": 120, "check_s": 60, "hang_s": 60, "stop_s": 5}
        return {**sweep, "name": "hosts", **top}

    def telling(self, sweep: Json) -> Json:
        """The sweep with an engine whose `--version` says by which way it was asked."""
        script = self.folder / "engine"
        way = "${SLURM_STEP_ID:+slurm}${SSH_CONNECTION:+ssh}"
        script.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "engine 1.5 by {way}" || exec {sys.executable} -m rig.sim "$@"\n'
        )
        script.chmod(0o755)
        sweep["engines"]["sim"]["command"] = [str(script)]
        return sweep

    def start(self, sweep: Json, *before: str, **env: str) -> Run:
        """`before` wraps the command, as salloc does."""
        folder = self.folder / f"sweep-{len(self.started)}"
        folder.mkdir()
        mark = uuid.uuid4().hex
        sweep["cell"]["both"].setdefault("env", {})[MARK] = mark
        self.started.append(Run.start(folder, sweep, before=before, env=env, mark=mark))
        return self.started[-1]


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    """None outlives the test."""
    made = Sweeps(tmp_path)
    yield made
    end(made.started)


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for a condition that other processes bring about; what it came to."""

    def wait(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + patience_s
        while not (value := condition()):
            assert time.monotonic() < deadline, "never came about"
            time.sleep(0.05)
        return value

    return wait
