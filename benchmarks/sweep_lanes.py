"""Wall time and launches of a 12-cell sweep on the simulated engine: a launch a cell, shared servers, and lanes.

    python -m benchmarks.sweep_lanes [--start-s SECONDS] [--lanes N ...] [--rounds N]

The engine answers as slowly as it is told to and starts as late, so that time is spent as on an accelerator: waiting.
The ways take turns in every round. Whatever else a machine does only adds to a wall time, so the lowest is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import yaml

from rig import run as runs
from rig.config import load_config
from rig.machine import detect_machine
from rig.plan import plan_sweep
from rig.plan_lanes import side_by_side
from rig.planned import SweepPlan
from rig.progress import Display

QUESTIONS = 40
MS_PER_TOKEN = 10
FIRST_PORT = 18100


def sweep(start_s: float) -> dict[str, object]:
    """Three deployments and their baseline, at three concurrencies each: 12 cells."""
    start = f'sleep {start_s:g}; exec {{rig_python}} -m rig.sim "$@"'
    port = FIRST_PORT
    return {
        "name": "lanes",
        "models": {"sim": {"id": "sim/tiny", "served_name": "sim-tiny"}},
        "engines": {
            "sim": {
                "command": ["sh", "-c", start, "sim"],
                "device": "cpu",
                "env": {"PDRIG_SIM_CONFIG": json.dumps({"ms_per_token": MS_PER_TOKEN})},
            }
        },
        "cell": {
            "model": "sim",
            "engine": "sim",
            "async_scheduling": False,
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
            "both": {"args": {"max-model-len": 2048}},
            "prefill": {"port": port, "side_channel_port": port + 100},
            "decode": {"port": port + 20, "side_channel_port": port + 120},
            "proxy": {"port": port + 40},
            "task": "tiny",
        },
        "matrix": {"both.env.CASE": ["a", "b", "c"], "concurrency": [4, 8, 16]},
        "tasks": {"tiny": {"task": "gsm-tiny", "limit": QUESTIONS, "shots": 2, "max_tokens": 64, "warmup": 0}},
        "baseline": {"monolithic": {"env": {"CASE": None}, "port": port + 60}},
        "gates": {"max_accuracy_drop": 0.1},
        "rerun": False,
    }


def measure(plan: SweepPlan, config: Path, out: Path) -> tuple[float, int, set[str]]:
    """Seconds, launches and states of one sweep."""
    tasks = runs.load_tasks(plan, None)
    folder = runs.begin(plan, config, out)
    begun = time.monotonic()
    result = asyncio.run(runs.Sweep(plan, tasks, folder, Display(io.StringIO())).all())
    took = time.monotonic() - begun
    states: set[str] = {cell.verdict.state if cell.verdict else cell.status for cell in result.cells}
    return took, len(list(folder.path.glob("deployments/*/deployment.json"))), states


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--start-s", type=float, default=20.0)
    options.add_argument("--lanes", type=int, nargs="*", default=[2, 4])
    options.add_argument("--rounds", type=int, default=3)
    wanted = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "lanes.yaml"
        config.write_text(yaml.safe_dump(sweep(wanted.start_s), sort_keys=False))
        plan = plan_sweep(load_config(config), detect_machine())
        alone = replace(plan, cells=tuple(replace(cell, fresh=True) for cell in plan.cells))
        variants = {"a launch a cell, one after another": alone, "shared servers, one after another": plan}
        variants |= {f"shared servers, `--parallel {n}`": side_by_side(plan, (), n) for n in wanted.lanes}
        print(f"{len(plan.cells)} cells, {os.cpu_count()} cores, {wanted.start_s:g} s a start", flush=True)
        seen: dict[str, list[tuple[float, float, int, set[str]]]] = {what: [] for what in variants}
        for number in range(1, wanted.rounds + 1):
            for what, variant in variants.items():
                load = os.getloadavg()[0]
                seen[what].append((load, *measure(variant, config, folder / "runs")))
                print(f"round {number}, {what}: {seen[what][-1]}", flush=True)
        print("| | launches | wall time, s: lowest (each round) | load at each start | verdicts (`ok`: baselines) |")
        print("|---|---|---|---|---|")
        for what, rounds in seen.items():
            loads, times, launches, states = zip(*rounds, strict=True)
            each = ", ".join(f"{took:.0f}" for took in times)
            print(
                f"| {what} | {', '.join(map(str, sorted(set(launches))))} | {min(times):.0f} ({each}) "
                f"| {', '.join(f'{load:.0f}' for load in loads)} | {', '.join(sorted(set().union(*states)))} |"
            )


if __name__ == "__main__":
    main()
