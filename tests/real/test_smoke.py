"""One real prefill and decode pair: KV moves through NIXL, the counters account for it, the answers are right."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from demo_sweep import demo_sweep
from tiny_sweeps import on_free_ports, written

from evals.tasks import build_task
from evals.tiny_hybrid.problems import NAMES, ask, draw_code, problems, shot
from rig import cell as cells
from rig.config import load_config
from rig.deploy import Deployment, launch
from rig.machine import detect_machine
from rig.plan import plan_sweep
from rig.planned import CellPlan, DeploymentPlan
from rig.progress import Display
from rig.store import RunFolder

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 60
CODES = 20
GSM8K_QUESTIONS = 20


class Pair:
    """A deployment that stays up while its event loop runs in turns."""

    def __init__(self, cell: CellPlan, plan: DeploymentPlan, folder: Path) -> None:
        self.cell = cell
        self.run = RunFolder(folder)
        self._runner = asyncio.Runner()
        self.said = io.StringIO()
        display = Display(self.said)
        self.display = display
        self.deployment: Deployment = self.wait(
            launch(plan, self.run.deployment(plan.id), lambda e: display.server(e.server, e.phase, e.text))
        )

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def close(self) -> tuple[str, ...]:
        left: tuple[str, ...] = self.wait(self.deployment.stop())
        self._runner.close()
        return left


@pytest.fixture(scope="module")
def pair(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    file = written(on_free_ports(demo_sweep(QUESTIONS)), tmp_path_factory.mktemp("sweep"))
    plan = plan_sweep(load_config(file), detect_machine())
    (cell,) = [c for c in plan.cells if c.kind == "pd"]
    (deployment,) = [d for d in plan.deployments if d.id == cell.deployment]
    pair = Pair(replace(cell, baselines=()), deployment, tmp_path_factory.mktemp("pair"))
    yield pair
    assert pair.close() == ()


def test_every_answer_is_accounted_for_by_the_counters(pair: Pair) -> None:
    task = build_task("gsm-tiny", limit=QUESTIONS)
    work = cells.run_cell(pair.cell, pair.deployment, pair.cell.deployment, task, {}, pair.run, pair.display)
    result = pair.wait(work).result
    assert result.evidence.findings == ()
    assert result.evidence.pd_exercised is True
    assert result.evidence.canaries.wrong + result.evidence.canaries.crossed + result.evidence.canaries.error == 0
    asked = QUESTIONS + result.evidence.canaries.sent
    assert result.evidence.canaries.sent > 0 and result.evidence.transfers == result.evidence.local_tokens == asked
    assert (result.evidence.failed, result.evidence.expired) == (0, 0)
    assert sum(result.counts.error.values()) == 0
    assert result.accuracy.value >= 0.93
    assert result.verdict.state == "no_baseline"


def test_codes_are_found_in_every_part_of_the_prompt(pair: Pair) -> None:
    rng = random.Random(7)
    source = problems("train", 7)
    wrong = []
    for i in range(CODES):
        code = draw_code(rng, NAMES[i % len(NAMES)], digits=6)
        shots = [shot(p.question, p.solution) for p in (next(source) for _ in range(8))]
        shots.insert(i % 9, f"{code.statement}\n\n")
        body = {
            "model": pair.deployment.model,
            "prompt": "".join(shots) + ask(code.question),
            "max_tokens": 48,
            "temperature": 0,
            "stop": ["\n\n"],
        }
        answer = httpx.post(f"{pair.deployment.url}/v1/completions", json=body, timeout=120, trust_env=False)
        text = answer.raise_for_status().json()["choices"][0]["text"]
        if not re.search(rf"#### {code.digits}\s*$", text):
            wrong.append((i % 9, code.digits, text))
    assert not wrong


@pytest.mark.gsm8k
def test_real_gsm8k_prompts_go_through(pair: Pair, tmp_path: Path) -> None:
    data = os.environ.get("PDRIG_DATA")
    if not data:
        pytest.skip("PDRIG_DATA does not name a folder with the GSM8K files")
    options = ["--task", "gsm8k", "--data", data, "--limit", str(GSM8K_QUESTIONS), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "rig", "eval", pair.deployment.url, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "errors 0" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert len(records) == GSM8K_QUESTIONS
    assert min(r["prompt_tokens"] for r in records) > 1000
