"""Passes, schedules and reasoning from the file to the report, on simulated engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from sim_sweeps import free_ports

CONFIG = Path(__file__).parents[3] / "configs" / "sim.yaml"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pdrig(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from rig.cli import main; main()", *argv],
        env={name: value for name, value in os.environ.items() if not name.startswith(("PDRIG_", "OPENAI_"))},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_passes_and_concurrencies_on_servers_that_no_verdict_restarts(tmp_path: Path) -> None:
    sweep = yaml.safe_load(CONFIG.read_text())
    del sweep["include"]
    sweep["baseline"] = {"cell": {"pass": 1}}
    sweep["matrix"] = {"concurrency": [2, 8]}
    sweep["tasks"]["gsm-tiny"] |= {"limit": 40, "warmup": 4, "passes": 2}
    ports = iter(free_ports(5))
    for role in ("prefill", "decode"):
        sweep["cell"][role] |= {"port": next(ports), "side_channel_port": next(ports)}
    sweep["cell"]["proxy"]["port"] = next(ports)
    (tmp_path / "sim.yaml").write_text(yaml.safe_dump(sweep))

    done = pdrig("sweep", str(tmp_path / "sim.yaml"), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    found = {}
    for folder in run.glob("cells/*"):
        cell = json.loads((folder / "cell.json").read_text())
        labels = cell["labels"]
        asked = [row for row in rows(folder / "requests.jsonl") if row["kind"] == "question"]
        assert {row["pass"] for row in asked} == {labels["pass"]}
        assert cell["warmup_requests"] == (4 if labels["pass"] == 1 else 0)
        state = cell["verdict"]["state"] if cell["verdict"] else None
        found[labels["concurrency"], labels["pass"]] = (cell["deployment"], state)
    launches = [[found[concurrency, number][0] for number in (1, 2)] for concurrency in (2, 8)]
    assert launches[0][0] == launches[0][1] != launches[1][0] == launches[1][1]
    assert len(list((run / "deployments").iterdir())) == 2
    assert found[2, 1][1] is None, "others are held against it"
    assert found[2, 2][1] in ("pass", "inconclusive")
    assert "Warm-up: 0 to 4 requests a cell" in done.stdout


def test_reasoning_as_chat_at_random_times(start: Callable[..., Any], tmp_path: Path) -> None:
    sim = start("--reasoning-parser", "any", faults=[{"fault": "reasoning_only"}])
    argv = ["eval", sim.url, "--task", "gsm-tiny", "--limit", "20", "--chat", "--poisson", "200", "--seed", "1"]
    argv += ["--param", "stop=null", "--max-tokens", "96", "--warmup", "2", "--retries", "1", "--timeout", "idle=30"]

    kept = pdrig(*argv, "--out", str(tmp_path / "kept"))
    assert kept.returncode == 3, kept.stderr
    assert "load: poisson 200/s seed 1" in kept.stdout
    assert "  error decode empty 20" in kept.stdout

    scored = pdrig(*argv, "--score-reasoning", "--out", str(tmp_path / "scored"))
    assert scored.returncode == 0, scored.stderr
    cell = json.loads((tmp_path / "scored" / "cell.json").read_text())
    assert (cell["counts"]["correct"], cell["retried"], cell["warmup_requests"]) == (20, 0, 2)
    assert (cell["task"]["endpoint"], cell["task"]["score_reasoning"]) == ("chat", True)
    assert "stop" not in cell["task"]["params"]
    asked = rows(tmp_path / "scored" / "requests.jsonl")
    assert {(row["endpoint"], row["text"]) for row in asked} == {("chat", None)}
    assert all(row["reasoning"] and row["error"]["class"] == "empty" for row in asked)
