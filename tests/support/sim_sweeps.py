"""`pdrig sweep` on simulated engines: its file, its ports, and its process, which no test leaves behind."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

PORTS = (20000, 25000)
"""Below those that Linux gives to outgoing connections, of which these tests make thousands, and none of configs/."""
_handed_out: set[int] = set()


def free_range(count: int) -> int:
    """The first of so many ports in a row that were free a moment ago at any address; none is handed out twice."""
    while True:
        first = random.randrange(*PORTS)
        wanted = set(range(first, first + count))
        if wanted & _handed_out:
            continue
        try:
            with ExitStack() as held:
                for port in wanted:
                    held.enter_context(socket.socket()).bind(("", port))
        except OSError:
            continue
        _handed_out.update(wanted)
        return first


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    return [free_range(1) for _ in range(count)]


def clean_env() -> dict[str, str]:
    """This process's environment without what would steer engines, evaluations or launchers."""
    foreign = ("PDRIG_", "VLLM_", "OPENAI_", "SLURM_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def sweep_file(task: Mapping[str, Any] | None = None, sim: Mapping[str, Any] | None = None) -> Json:
    """A sweep of one P/D cell against one monolithic server, on free ports: 40 questions, a margin they can show."""
    prefill, prefill_side, decode, decode_side, proxy, alone = free_ports(6)
    settings = {"max_num_seqs": 64, **(sim or {})}
    return {
        "name": "cases",
        "models": {"sim": {"id": "sim/tiny", "served_name": "sim-tiny"}},
        "engines": {
            "sim": {
                "command": ["{rig_python}", "-m", "rig.sim"],
                "device": "cpu",
                "env": {"PDRIG_SIM_CONFIG": json.dumps(settings)},
            }
        },
        "cell": {
            "model": "sim",
            "engine": "sim",
            "async_scheduling": False,
            "kv_transfer_config": {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "fail",
                # What failed requests hold is waited for, after a cell: not for half a minute.
                "kv_connector_extra_config": {"kv_lease_duration": 5},
            },
            "both": {"args": {"max-model-len": 2048}},
            "prefill": {"port": prefill, "side_channel_port": prefill_side},
            "decode": {"port": decode, "side_channel_port": decode_side},
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
                **(task or {}),
            }
        },
        "baseline": {"monolithic": {"port": alone}},
        "gates": {"max_accuracy_drop": 0.1},
        "rerun": False,
        "limits": {"start_s": 240, "check_s": 120, "hang_s": 120, "stop_s": 5},
    }


@dataclass
class SweepProcess:
    """`pdrig sweep` in a process of its own; exit code, stdout and stderr are known once it has ended."""

    folder: Path
    process: subprocess.Popen[str]
    code: int = -1
    out: str = ""
    err: str = ""

    @classmethod
    def start(
        cls,
        folder: Path,
        sweep: Json | None,
        *options: str,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Self:
        """Its file and its runs are in `folder`; without a sweep the file that is there is run once more.

        `before` wraps the command; `fields` are those of this class's own kind.
        """
        config = folder / "sweep.yaml"
        if sweep is not None:
            config.write_text(yaml.safe_dump(sweep, sort_keys=False))
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "rig", "sweep", str(config), "--out", str(folder / "runs"), *options],
            cwd=ROOT,
            env={**clean_env(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return cls(folder, process, **fields)

    def finish(self, patience_s: float) -> Self:
        """Wait for its end."""
        self.out, self.err = self.process.communicate(timeout=patience_s)
        self.code = self.process.returncode
        return self


def end(started: Iterable[SweepProcess]) -> None:
    """End those that still run, which end their servers themselves."""
    for sweep in started:
        if sweep.process.poll() is None:
            sweep.process.terminate()
            sweep.process.communicate()
