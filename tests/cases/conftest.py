"""Sweeps on simulated engines as a user runs them, and what they left behind, for the cases of the field."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml
from processes import alive
from sim_sweeps import free_ports, free_range, sweep_file
from sweep_process import ROOT, Json, SweepProcess, clean_env, end

from evals.records import RequestRecord
from evals.sink import read_records
from rig.config import load_config
from rig.machine import detect_machine
from rig.plan import plan_sweep
from rig.planned import DeploymentPlan, SweepPlan

CASE = "both.env.CASE"
"""The axis that names a case; engines pay no attention to it."""
FAULTS = "both.env.PDRIG_SIM_FAULTS"

ASKED = "\n\nQuestion: "
"""What the prompts of evaluations hold and those of the rig's own checks do not."""

PATIENCE_S = 400
"""How long anything is waited for. Far longer than it takes: a machine with other work to do is no failure."""

Faults = Sequence[Mapping[str, Any]]


def rows(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def client_id(upstream: str | None) -> str:
    """The rig's id of a request; the proxy appends to it what makes it unique."""
    return re.sub(r"-[0-9a-f]{32}$", "", upstream or "")


def asked(fault: str, rate: float = 1.0, **more: Any) -> Json:
    """A fault that strikes evaluations alone; `when` and `params` as in docs/sim.md."""
    when = {"prompt_contains": ASKED, **more.pop("when", {})}
    return {"fault": fault, "rate": rate, "when": when, **more}


def silent_after(number: int) -> Json:
    """From its request of that number on decode says nothing: however slow whoever is to strike within an evaluation,
    it has not ended by then.
    """
    return asked("hang", when={"side": "decode", "after_requests": number})


def template(task: Mapping[str, Any] | None = None, sim: Mapping[str, Any] | None = None) -> Json:
    """A sweep of one P/D cell against one monolithic server whose servers have variables for a case and its faults."""
    sweep = sweep_file(task, sim)
    sweep["cell"]["both"] |= {"side_channel_host": "127.0.0.1", "env": {"CASE": "none", "PDRIG_SIM_FAULTS": "[]"}}
    sweep["baseline"]["monolithic"] |= {"async_scheduling": False, "env": {"CASE": None, "PDRIG_SIM_FAULTS": None}}
    return sweep


def with_cases(sweep: Json, cases: Mapping[str, Faults], more: Mapping[str, Json] | None = None) -> Json:
    """The sweep with a cell a case; `more` is what else a case sets, by dotted path."""
    include = [{CASE: name, FAULTS: json.dumps(list(f)), **(more or {}).get(name, {})} for name, f in cases.items()]
    return {**sweep, "include": include}


@dataclass
class Cell:
    """One cell of a run: its result, its raw and judged records, its legs, and the engines' own word."""

    folder: Path
    result: Json
    ledger: list[Json] = field(repr=False)

    @cached_property
    def records(self) -> list[RequestRecord]:
        return list(read_records(self.folder / "requests.jsonl").records)

    @cached_property
    def judged(self) -> dict[str, Json]:
        return {row["request_id"]: row for row in rows(self.folder / "judged.jsonl")}

    @cached_property
    def ids(self) -> set[str]:
        return {r.request_id for r in self.records}

    @cached_property
    def legs(self) -> list[Json]:
        found = rows(self.folder.parents[1] / "deployments" / self.result["deployment"] / "legs.jsonl")
        return [leg for leg in found if leg["request_id"] in self.ids]

    @cached_property
    def deployment(self) -> Json:
        path = self.folder.parents[1] / "deployments" / self.result["deployment"] / "deployment.json"
        return dict(json.loads(path.read_text()))

    def truth(self, side: str) -> dict[str, Json]:
        """What the engines of one side did to this cell's requests, by the rig's id."""
        mine = [row for row in self.ledger if client_id(row["request_id"]) in self.ids]
        return {client_id(row["request_id"]): row for row in mine if row["side"] == side}

    def struck(self, fault: str, side: str = "decode") -> set[str]:
        """The rig's ids of the requests that a fault struck."""
        return {name for name, row in self.truth(side).items() if fault in row["faults"]}

    def errors(self) -> dict[str, tuple[str, str]]:
        """Leg and class of each request that failed, by the rig's id."""
        return {r.request_id: (r.error.leg, r.error.error_class) for r in self.records if r.error}

    @property
    def state(self) -> str | None:
        return self.result["verdict"]["state"] if self.result["verdict"] else None

    @property
    def channels(self) -> list[str]:
        return [reason["channel"] for reason in self.result["verdict"]["reasons"]]

    @property
    def why(self) -> str:
        return " ".join(reason["text"] for reason in self.result["verdict"]["reasons"])


@dataclass
class Sweep(SweepProcess):
    """A sweep of a case; `ledger_path` is what all engines of it write."""

    ledger_path: Path = Path()

    def finish(self, patience_s: float = PATIENCE_S) -> Self:
        return super().finish(patience_s)

    @cached_property
    def ledger(self) -> list[Json]:
        return rows(self.ledger_path)

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        paths = self.run.glob("cells/*/cell.json")
        return {path.parent.name: Cell(path.parent, json.loads(path.read_text()), self.ledger) for path in paths}

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """By case; the monolithic baseline is `baseline`."""
        found = {}
        for cell in self.by_id.values():
            result = cell.result
            found[result["labels"].get(CASE) or ("baseline" if result["kind"] == "monolithic" else "none")] = cell
        return found

    def records_so_far(self, kind: str) -> list[Json]:
        """Whole lines on disk now, of the cell of a kind (`pd`, `mono`)."""
        found = []
        for path in (self.folder / "runs").glob(f"*/cells/*-{'mono' if kind == 'mono' else '1p1d'}-*/requests.jsonl"):
            found += [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return found

    def processes(self) -> dict[int, int]:
        """Every pid that the deployments of the run wrote down, with when it started, which tells it from a later one:
        guards, servers and what was below them.
        """
        pids = {}
        for path in (self.folder / "runs").glob("*/deployments/*/deployment.json"):
            for process in json.loads(path.read_text())["processes"].values():
                for seen in (process.get("guard"), process.get("process"), *process.get("tree", ())):
                    if seen:
                        pids[seen["pid"]] = seen["start"]
        return pids

    def left_running(self) -> set[int]:
        return {pid for pid, start in self.processes().items() if alive(pid, start)}


StartSweep = Callable[..., Sweep]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a module waits for all of its sweeps."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(3 * PATIENCE_S))


@pytest.fixture(scope="session")
def start_sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSweep]:
    """Starts sweeps; none outlives the tests."""
    started: list[Sweep] = []

    def start(
        sweep: Json | None,
        *options: str,
        env: Mapping[str, str] | None = None,
        again: Sweep | None = None,
        before: Sequence[str] = (),
    ) -> Sweep:
        """`again` runs the same file once more, in the folder of an earlier sweep; `before` wraps the command."""
        folder = again.folder if again else tmp_path_factory.mktemp("sweep")
        ledger = folder / "ledger.jsonl"
        env = {"PDRIG_SIM_LEDGER": str(ledger), **(env or {})}
        started.append(Sweep.start(folder, sweep, *options, before=before, env=env, ledger_path=ledger))
        return started[-1]

    yield start
    end(started)


def planned(sweep: Json, folder: Path) -> SweepPlan:
    """The plan of a sweep, by way of its file."""
    path = folder / "planned.yaml"
    path.write_text(yaml.safe_dump(sweep, sort_keys=False))
    return plan_sweep(load_config(path), detect_machine())


@contextlib.contextmanager
def engines(plan: DeploymentPlan, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The plan's servers by name, started by hand as somebody else's launcher would, and well."""
    started = {}
    try:
        for server in plan.servers:
            with (folder / f"{server.name}.log").open("wb") as out:
                env = {**clean_env(), **server.env}
                process = subprocess.Popen(server.argv, env=env, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
            started[server.name] = process
        for server in plan.servers:
            wait(lambda url=server.url: well(url), started[server.name])
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def well(url: str) -> bool:
    """Whether a server answers that it is well."""
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def wait(true: Callable[[], Any], process: subprocess.Popen[Any]) -> Any:
    """The condition's value once it holds; an error if the process ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := true()):
        assert time.monotonic() < deadline, "the condition did not come about"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            value = true()
            assert value, f"the process ended with {process.returncode}"
            return value
    return value


def wait_gone(processes: Mapping[int, int]) -> None:
    """Until none of these processes, by pid and start, runs any more; they need not be children."""
    for pid, start in processes.items():
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                ended = not alive(pid, start) or select.select([handle], [], [], PATIENCE_S)[0]
                assert ended, f"process {pid} runs on"
            finally:
                os.close(handle)


@dataclass(frozen=True)
class Kit:
    """The helpers of this file for tests, which cannot import it."""

    asked = staticmethod(asked)
    silent_after = staticmethod(silent_after)
    template = staticmethod(template)
    with_cases = staticmethod(with_cases)
    planned = staticmethod(planned)
    engines = staticmethod(engines)
    well = staticmethod(well)
    wait = staticmethod(wait)
    wait_gone = staticmethod(wait_gone)
    clean_env = staticmethod(clean_env)
    rows = staticmethod(rows)
    client_id = staticmethod(client_id)
    alive = staticmethod(alive)
    free_ports = staticmethod(free_ports)
    free_range = staticmethod(free_range)
    root: Path = ROOT


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
