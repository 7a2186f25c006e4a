"""The rig's table equals, to the digit, what the simulated engine says it answered and damaged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIG = Path(__file__).parents[3] / "configs" / "sim.yaml"
RIGHT = {True: "correct", False: "wrong"}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def client_id(upstream: str) -> str:
    """The rig's id of a request; the proxy appends to it what makes it unique."""
    return upstream.partition("-")[0]


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    """The sweep of configs/sim.yaml on ports that are free, with 60 questions, async on alone."""
    sweep = yaml.safe_load(CONFIG.read_text())
    del sweep["include"]
    sweep["matrix"] = {"async_scheduling": [True]}
    sweep["tasks"]["gsm-tiny"] |= {"limit": 60, "warmup": 8}
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    ports = iter([sock.getsockname()[1] for sock in held])
    for sock in held:
        sock.close()
    cell = sweep["cell"]
    for role in ("prefill", "decode"):
        cell[role] |= {"port": next(ports), "side_channel_port": next(ports)}
    cell["proxy"]["port"] = next(ports)
    path = tmp_path / "sim.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def test_the_table_equals_the_ledger(sweep_file: Path, tmp_path: Path) -> None:
    ledger_path, out = tmp_path / "ledger.jsonl", tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, "-c", "from rig.cli import main; main()", "sweep", str(sweep_file), "--out", str(out)],
        env={**os.environ, "PDRIG_SIM_LEDGER": str(ledger_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    answered = [row for row in rows(ledger_path) if row["side"] != "prefill" and row["request_id"]]
    truth = {client_id(row["request_id"]): row for row in answered}
    states = {}
    for folder in out.glob("*/cells/*"):
        cell = json.loads((folder / "cell.json").read_text())
        states[cell["kind"]] = cell["verdict"]["state"] if cell["verdict"] else None
        asked = {row["request_id"] for row in rows(folder / "requests.jsonl") if row["kind"] == "question"}
        judged = [row for row in rows(folder / "judged.jsonl") if row["request_id"] in asked]
        assert len(judged) == len(asked) == 60
        assert {row["request_id"]: row["outcome"] for row in judged} == {
            name: RIGHT[truth[name]["right"]] for name in asked
        }
        told = Counter(RIGHT[truth[name]["right"]] for name in asked)
        assert cell["counts"] == {
            "correct": told["correct"],
            "wrong": told["wrong"],
            "unparsed": 0,
            "truncated": 0,
            "error": {},
            "error_by_leg": {},
        }
        damaged = {name for name in asked if truth[name]["faults"]}
        assert told["wrong"] == len(damaged)
        if cell["kind"] == "pd":
            assert damaged and cell["evidence"]["external_tokens"] == sum(
                truth[name]["external_tokens"] for name in asked
            )
    assert states["pd"] == "regression"
