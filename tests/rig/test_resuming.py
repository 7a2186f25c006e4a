"""What of a half-finished cell is kept, and why a cell starts over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evals.load import requests_of
from evals.records import RequestError, RequestRecord
from evals.sink import JsonlWriter
from rig.asking import load_task
from rig.attempts import Attempt, Kept, Part, read_attempt, write_attempt
from rig.deploy.record import Record
from rig.errors import UsageError
from rig.judge import judge
from rig.planned import CellPlan, DeploymentPlan, ProxyPlan, ServerPlan, TaskPlan
from rig.records import CellResult, Gates, RunInfo, TaskInfo
from rig.resuming import kept_of, reopen
from rig.series import Reading
from rig.store import RunFolder

SAMPLES = [f"gsm-tiny-{i:04d}" for i in range(6)]
TASK = TaskPlan("t", "gsm-tiny", 6, 0, None, 1, True, 0, canaries=0)
CELL = CellPlan("c", {}, "pd", "d", TASK, Gates())
SERVER = ServerPlan("decode-0", "decode", ("vllm", "--port", "1"), {"A": "1"}, 1, "http://x:1", "m")
PLAN = DeploymentPlan("d", "pd", "local", "m", "NixlConnector", (SERVER,), proxy=ProxyPlan(("proxy",), 2, "http://x:2"))
ENGINES = {"vllm": {"vllm": "0.32", "nixl": None}}


@dataclass
class Stopped:
    """A run that was stopped within a cell whose first four questions had ended by its last reading."""

    run: RunFolder
    make_record: Callable[..., RequestRecord]

    def __post_init__(self) -> None:
        requests = list(requests_of(load_task(TASK, None)))
        self.records = [
            self.make_record(r.sample_id, prompt_sha256=sha(r.prompt), prompt_tokens=100) for r in requests[:5]
        ]
        self.begun = 6
        self.legs = [r.request_id for r in self.records]
        self.recorded(PLAN, ENGINES)

    def recorded(self, plan: DeploymentPlan, engines: Any) -> None:
        folder = self.run.deployment("d")
        folder.mkdir(parents=True, exist_ok=True)
        Record(plan, folder).update(engines=engines)

    def write(self, parts: bool = True) -> None:
        with JsonlWriter(self.run.new_requests("c")) as sink:
            for record in [self.make_record("warmup-0", kind="warmup"), *self.records]:
                sink.append_record(record)
        ended = tuple(r.request_id for r in self.records[:4])
        part = Part("d", (), (Reading("decode-0", "decode", {"x": 1.0}),), ended, self.begun, {})
        write_attempt(self.run, "c", Attempt(5.0, (part,) if parts else ()))
        legs = [
            {"request_id": i, "leg": name, "instance": "x", "engine_request_id": None, "engine_id": None, "status": 200}
            | {"t_start": 0, "t_first_byte": None, "t_end": 1, "params_present": True, "error": None}
            for i in self.legs
            for name in ("prefill", "decode")
        ]
        (self.run.deployment("d") / "legs.jsonl").write_text("".join(json.dumps(leg) + "\n" for leg in legs))

    def kept(self, plan: DeploymentPlan = PLAN, engines: Any = ENGINES, cell: CellPlan = CELL) -> Kept | str | None:
        return kept_of(self.run, cell, plan, load_task(cell.task, None), engines)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def stopped(tmp_path: Path, make_record: Callable[..., RequestRecord]) -> Stopped:
    return Stopped(RunFolder(tmp_path), make_record)


def test_kept_is_what_the_last_reading_speaks_for(stopped: Stopped) -> None:
    assert stopped.kept() is None, "nothing was asked yet"
    stopped.write()
    kept = stopped.kept()
    assert isinstance(kept, Kept)
    assert list(kept.records) == stopped.records[:4] and kept.again == 1 and kept.t0_unix == 5.0
    (part,) = kept.parts
    assert (part.ended, part.under_way) == (tuple(r.request_id for r in kept.records), 2)
    assert part.after[0].values == {"x": 1.0}


def test_the_rigs_own_faults_are_asked_again_and_those_of_the_deployment_count(stopped: Stopped) -> None:
    for i, (leg, name) in enumerate([("client", "cancelled"), ("client", "internal"), ("decode", "reset")]):
        error = RequestError(leg, name, "x")  # type: ignore[arg-type]
        stopped.records[i] = replace(stopped.records[i], error=error, text=None)
    stopped.write()
    kept = stopped.kept()
    assert isinstance(kept, Kept)
    assert list(kept.records) == stopped.records[2:4] and kept.again == 3
    assert kept.parts[0].under_way == 4, "each of them may have moved its KV"


def test_an_answer_without_its_legs_is_asked_again_unless_the_proxy_is_not_ours(stopped: Stopped) -> None:
    del stopped.legs[1]
    stopped.write()
    kept = stopped.kept()
    assert isinstance(kept, Kept) and stopped.records[1] not in kept.records and len(kept.records) == 3
    foreign = replace(PLAN, proxy=ProxyPlan((), 2, "http://x:2", kind="url"))
    stopped.recorded(foreign, ENGINES)
    kept = stopped.kept(foreign)
    assert isinstance(kept, Kept) and len(kept.records) == 4


def changed(**fields: Any) -> DeploymentPlan:
    return replace(PLAN, servers=(replace(SERVER, **fields),))


OTHERS = [
    (changed(argv=("vllm", "--port", "3")), ENGINES, "decode-0: argv was vllm --port 1, now vllm --port 3"),
    (changed(env={"A": "2"}), ENGINES, "decode-0: env: A was 1, now 2"),
    (changed(gpus=("1",)), ENGINES, "decode-0: gpus was not set, now 1"),
    (changed(name="decode-1"), ENGINES, "it had the processes decode-0, proxy, now decode-1, proxy"),
    (PLAN, {"vllm": {"vllm": "0.33", "nixl": None}}, "engines: vllm: vllm was 0.32, now 0.33"),
    (PLAN, {}, "engines: vllm was {'vllm': '0.32', 'nixl': None}, now not set"),
]


@pytest.mark.parametrize(("plan", "engines", "told"), OTHERS)
def test_a_deployment_that_differs_starts_over(stopped: Stopped, plan: DeploymentPlan, engines: Any, told: str) -> None:
    stopped.write()
    found = stopped.kept(plan, engines)
    assert isinstance(found, str) and found == f"its deployment differs now: {told}"


def test_an_inherited_variable_that_differs_starts_over(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.write()
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("EDITOR", "ed")
    assert stopped.kept() == "its deployment differs now: environment: VLLM_USE_V1 was not set, now 0"
    monkeypatch.delenv("VLLM_USE_V1")
    assert isinstance(stopped.kept(), Kept)


def test_without_a_reading_a_cell_starts_over(stopped: Stopped) -> None:
    stopped.write(parts=False)
    assert stopped.kept() == "no reading of its counters was taken"
    assert read_attempt(stopped.run, "other") is None


@pytest.mark.parametrize("left", [b"", b'{"t0_unix": 5.0, "par', b"\0" * 40])
def test_what_a_crash_of_the_machine_left_of_a_file_starts_the_cell_over(stopped: Stopped, left: bytes) -> None:
    """A cell that is called invalid for it would stay so."""
    stopped.write()
    readings = stopped.run.cell("c") / "readings.json"
    whole = readings.read_bytes()
    readings.write_bytes(left)
    assert f"what it wrote down cannot be read: {readings}" in str(stopped.kept())
    readings.write_bytes(whole)
    (stopped.run.deployment("d") / "deployment.json").write_bytes(left)
    assert str(stopped.kept()).endswith("deployment.json is damaged")


@pytest.mark.parametrize("name", ["cells/c/requests.jsonl", "deployments/d/legs.jsonl"])
def test_lines_that_cannot_be_read_start_the_cell_over(stopped: Stopped, name: str) -> None:
    stopped.write()
    path = stopped.run.path / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0" * 40 + b"\n", *lines[1:]]))
    assert str(stopped.kept()).startswith(f"what it wrote down cannot be read: {path}:2: ")


def test_a_record_that_is_there_twice_is_kept_once(stopped: Stopped) -> None:
    stopped.records.insert(1, stopped.records[0])
    stopped.write()
    path = stopped.run.requests("c")
    whole = [stopped.records[0], *stopped.records[2:]]
    ended = tuple(r.request_id for r in whole[:4])
    attempt = read_attempt(stopped.run, "c")
    assert attempt is not None
    write_attempt(stopped.run, "c", replace(attempt, parts=(replace(attempt.parts[0], ended=ended),)))
    kept = stopped.kept()
    assert isinstance(kept, Kept)
    assert list(kept.records) == whole[:4] and (kept.again, kept.repeated) == (1, 1)
    assert kept.parts[0].ended == ended and kept.parts[0].under_way == 2
    with JsonlWriter(path) as sink:
        sink.append_record(replace(stopped.records[0], text="another"))
    assert str(stopped.kept()).startswith(f"what it wrote down cannot be read: {path}:8: another record of r-")


def test_other_prompts_start_over(stopped: Stopped) -> None:
    stopped.records[0] = replace(stopped.records[0], prompt_sha256="0" * 64)
    stopped.write()
    assert stopped.kept() == "its task has other prompts now"


def test_a_proof_that_is_too_weak_is_none(stopped: Stopped) -> None:
    stopped.begun = 4 + 99
    stopped.write()
    assert stopped.kept() == "99 requests were under way at its last reading, and its shortest prompt has 100 tokens"
    alone = replace(PLAN, kind="monolithic")
    assert isinstance(stopped.kept(alone), Kept), "nothing has to move there"
    stopped.begun = 4 + 98
    stopped.write()
    assert isinstance(stopped.kept(), Kept)


@pytest.mark.parametrize(
    ("status", "questions", "told"),
    [
        ("failed", 5, "its deployment failed (decode-0 ended)"),
        ("ok", 6, "its files are damaged"),
        ("ok", 5, None),
        ("interrupted", 6, None),
    ],
)
def test_a_cell_with_a_result(stopped: Stopped, status: Any, questions: int, told: str | None) -> None:
    """One that is whole and asked again all the same, as its scorer changed, keeps its answers."""
    stopped.write()
    stopped.run.write_judged("c", judge(stopped.records, dict.fromkeys(SAMPLES, "#### 1"), [], "gsm8k-strict"))
    task = TaskInfo("gsm-tiny", "1", "p", "gsm8k-strict", "0" * 64, questions)
    stopped.run.write_cell(CellResult("c", {}, "pd", "d", status, task=task, failure="decode-0 ended"))
    found = stopped.kept()
    assert found == told if told else isinstance(found, Kept)


def test_a_run_of_another_sweep_is_refused_with_the_command_that_made_it(stopped: Stopped) -> None:
    made = ["pdrig", "sweep", "a b.yaml", "--limit", "5"]
    stopped.run.write_info(RunInfo("r", "s", "x", "", {"limit": 5}, "", None, made, {}, {}, None))
    assert reopen(stopped.run.path, {"limit": 5}).path == stopped.run.path
    with pytest.raises(UsageError, match=r"was made from another sweep.*by: pdrig sweep 'a b.yaml' --limit 5\)$"):
        reopen(stopped.run.path, {"limit": 6})


def test_one_of_several_passes_starts_over(stopped: Stopped) -> None:
    stopped.write()
    first = replace(CELL, task=replace(TASK, pass_=1))
    assert stopped.kept(cell=first) == (
        "it is one of several passes over the same questions, which are about what the servers hold"
    )
