"""A night on the real engine whose runner is lost in the middle of a cell, and the same night started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_sweep import demo_sweep
from processes import alive

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 400
PATIENCE_S = 600
Json = dict[str, Any]

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]


def rows(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@dataclass
class Night:
    """`nightly.py` with the same key each time, in processes of its own."""

    folder: Path
    process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        script = [sys.executable, str(ROOT / "scripts" / "nightly.py"), "--config", str(self.folder / "case.yaml")]
        options = ["--state", str(self.state), "--key", "night", "--baselines", str(self.folder / "baselines")]
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                [*script, *options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True
            )
        return self.process

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def said(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def run(self) -> Path:
        (path,) = self.state.glob("night/*/run.json")
        return path.parent

    def cell(self, kind: str) -> Path:
        (path,) = self.run.glob(f"cells/*-{kind}-*")
        return path

    def proved(self) -> set[str]:
        """Requests of the P/D cell that a reading of the counters speaks for."""
        for path in self.state.glob("night/*/cells/*-1p1d-*/readings.json"):
            return {name for part in json.loads(path.read_text())["parts"][-1:] for name in part["ended"]}
        return set()

    def processes(self, *which: str) -> set[int]:
        """Pids that the deployments wrote down: of guards, or of servers and what was below them."""
        found = set()
        for path in self.run.glob("deployments/*/deployment.json"):
            for process in json.loads(path.read_text())["processes"].values():
                for name in which:
                    seen = process.get(name) or []
                    found |= {one["pid"] for one in (seen if isinstance(seen, list) else [seen])}
        return found


@pytest.fixture
def night(engine: Path, tmp_path: Path) -> Iterator[Night]:
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(demo_sweep(QUESTIONS), sort_keys=False))
    made = Night(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.terminate()
        made.process.wait()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's engine, by its name."""
    process = subprocess.Popen(["bash", "-c", "exec -a VLLM::EngineCore sleep infinity"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("guards_too", [True, False], ids=["and its guards", "alone"])
def test_a_night_whose_rig_is_killed(night: Night, bystander: Any, until: Callable[..., Any], guards_too: bool) -> None:
    first = night.start()
    until(lambda: len(night.proved()) >= 40 or first.poll() is not None, PATIENCE_S)
    assert first.poll() is None, night.said
    if guards_too:
        # As a runner's end does it: nobody is left who could end the engines.
        first.send_signal(signal.SIGSTOP)
        for pid in filter(alive, night.processes("guard")):
            os.kill(pid, signal.SIGKILL)
    first.kill()
    first.wait()
    proved, whole = night.proved(), night.cell("mono")
    on_disk = {r["request_id"]: r for r in rows(night.cell("1p1d") / "requests.jsonl") if r["kind"] != "warmup"}
    finished = {path: path.read_bytes() for path in (whole / "cell.json", whole / "requests.jsonl")}
    engines = night.processes("guard", "process", "tree")
    if guards_too:
        left = set(filter(alive, engines))
        assert len(left) >= 4, "without rig and guards both servers and their engines live on"
    else:
        left = set()
        until(lambda: not any(map(alive, engines)), PATIENCE_S)

    before = len(night.said)
    again = night.start()
    assert again.wait(PATIENCE_S) == 0, night.said
    said = night.said[before:]
    for server in ("prefill-0", "decode-0"):
        assert (f"/{server}: pid " in said) is guards_too, "it is said what was ended"
    assert not any(map(alive, left | night.processes("guard", "process", "tree")))
    assert bystander.poll() is None and alive(bystander.pid), "what is somebody else's is let be"

    assert {path: path.read_bytes() for path in finished} == finished, "a finished cell is kept as it is"
    folder = night.cell("1p1d")
    cell, records = json.loads((folder / "cell.json").read_text()), rows(folder / "requests.jsonl")
    asked = Counter((r["kind"], r["sample_id"], r["repeat"]) for r in records if r["kind"] != "warmup")
    assert set(asked.values()) == {1} and sum(kind == "question" for kind, _, _ in asked) == QUESTIONS
    kept = {r["request_id"]: r for r in records if r["request_id"] in on_disk}
    assert kept == {name: on_disk[name] for name in proved}, "what is proved is kept, the rest is asked again"
    assert (cell["resumed"]["kept"], cell["resumed"]["again"]) == (len(proved), len(on_disk) - len(proved))
    assert cell["verdict"]["state"] == "pass" and cell["evidence"]["pd_exercised"] is True
    report = (night.state / "night" / "nightly.md").read_text()
    assert (
        f"`: {len(proved)} records are from before, {len(on_disk) - len(proved)} questions were asked again" in report
    )
    assert f"gone on with, {len(proved)} answers are kept" in report, "as do the notes"
    assert ("ended what was left running" in report) is guards_too
