"""The loop over a sweep, with stand-ins for servers and evaluations: what is asked of which launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from evals.scorers import get_scorer
from evals.tasks import build_task
from rig import cell as cells
from rig import launching, provenance
from rig import run as runs
from rig.deploy import Deployment, engine_on, remote
from rig.errors import DeployError
from rig.planned import CellPlan, DeploymentPlan, ServerPlan, SweepPlan, TaskPlan
from rig.progress import Display
from rig.records import Accuracy, CellResult, Gates, RunInfo, State, TaskInfo, Verdict
from rig.store import RunFolder

TASK = TaskPlan("t", "gsm-tiny", 1, 0, None, 1, True, 0)
INFO = RunInfo("r", "s", "x", "", {}, "", None, [], {}, {}, None)


def series(name: str, passes: int) -> list[CellPlan]:
    """The passes of one cell: `a1`, `a2` and so on."""
    whole = CellPlan(name, {}, "pd", "d", TASK, Gates(), fresh=True)
    return [replace(whole, id=f"{name}{k}", fresh=k == 1, continues=k > 1) for k in range(1, passes + 1)]


def single(name: str) -> CellPlan:
    return CellPlan(name, {}, "pd", "d", TASK, Gates())


class Stage:
    """What happened, in order: `asked` by launch, and how each cell ends."""

    def __init__(self, make_result: Callable[..., CellResult], folder: Path) -> None:
        self.make_result = make_result
        self.run = RunFolder(folder)
        self.run.write_info(INFO)
        self.asked: list[list[str]] = []
        self.ends: dict[str, State | Exception | None] = {}

    async def launch(self, *_: object) -> Deployment:
        stage = self

        class Fake(Deployment):
            def __init__(self) -> None:
                stage.asked.append([])

            def note(self, **_: object) -> None:
                pass

            async def stop(self) -> tuple[str, ...]:
                return ()

        return Fake()

    async def run_cell(self, cell: CellPlan, *_: object) -> cells.Finished:
        self.asked[-1].append(cell.id)
        end = self.ends.get(cell.id, "pass")
        if isinstance(end, Exception):
            raise end
        result = self.make_result(cell.id, verdict=Verdict(end) if end else None)
        self.run.write_judged(cell.id, [])
        self.run.requests(cell.id).touch()
        self.run.write_cell(result)
        return cells.Finished(result, (), {})

    async def sweep(self, wanted: Sequence[CellPlan]) -> dict[str, str]:
        """States by cell."""
        deployment = DeploymentPlan("d", "pd", "local", "m", None)
        plan = SweepPlan("s", "x", (deployment,), tuple(wanted), {})
        tasks = {"t": build_task("gsm-tiny", limit=1)}
        result = await runs.Sweep(plan, tasks, self.run, Display(StringIO())).all()
        return {c.cell_id: c.verdict.state if c.verdict else c.status for c in result.cells}


@pytest.fixture
def stage(make_result: Callable[..., CellResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(make_result, tmp_path)
    monkeypatch.setattr(launching, "launch", made.launch)
    monkeypatch.setattr(cells, "run_cell", made.run_cell)
    return made


async def test_cells_share_a_launch_until_a_verdict_is_not_pass(stage: Stage) -> None:
    stage.ends["b"] = "regression"
    await stage.sweep([single("a"), single("b"), single("c")])
    assert stage.asked == [["a", "b"], ["c"]]


async def test_a_stored_baseline_that_is_missing_beside_another_is_told(stage: Stage, tmp_path: Path) -> None:
    wanted = replace(single("b"), baselines=("a",), stored=str(tmp_path / "baselines"))
    await stage.sweep([single("a"), wanted])
    (note,) = stage.run.read_info().notes
    assert note.startswith("b: held against no stored baseline. No baseline is stored in ")
    found = {cell.cell_id: cell for cell in stage.run.read().cells}
    assert found["a"].missing_baseline is None
    assert str(found["b"].missing_baseline).startswith("No baseline is stored in ")


async def test_a_stored_baseline_that_is_missing_is_told_of_a_cell_without_any_other(
    stage: Stage, tmp_path: Path
) -> None:
    """Among the reasons where it has none; one that others are held against has no reasons."""
    stage.ends |= {"a": "no_baseline", "b": None}
    wanted = [replace(single(name), stored=str(tmp_path / "baselines")) for name in ("a", "b")]
    await stage.sweep(wanted)
    a, b = stage.run.read().cells
    assert a.verdict is not None and "No baseline is stored in " in a.verdict.reasons[-1].text
    assert a.missing_baseline is None
    assert b.verdict is None and str(b.missing_baseline).startswith("No baseline is stored in ")
    assert [note.partition(".")[0] for note in stage.run.read_info().notes] == ["b: held against no stored baseline"]


async def test_passes_share_a_launch_that_is_fresh_at_the_first(stage: Stage) -> None:
    await stage.sweep([single("x"), *series("a", 2), *series("b", 3), single("y")])
    assert stage.asked == [["x"], ["a1", "a2"], ["b1", "b2", "b3", "y"]]


async def test_no_verdict_stands_between_passes_and_then_servers_are_replaced(stage: Stage) -> None:
    stage.ends["a1"] = "regression"
    await stage.sweep([*series("a", 3), single("y")])
    assert stage.asked == [["a1", "a2", "a3"], ["y"]]


async def test_after_a_death_the_later_passes_have_failed_too(stage: Stage) -> None:
    stage.ends["a2"] = DeployError("decode-0 ended")
    states = await stage.sweep([*series("a", 3), single("y")])
    assert stage.asked == [["a1", "a2"], ["y"]]
    assert states == {"a1": "pass", "a2": "failed", "a3": "failed", "y": "pass"}


async def test_after_a_fault_of_the_rig_the_later_passes_are_invalid_too(stage: Stage) -> None:
    stage.ends["a1"] = RuntimeError("oops")
    states = await stage.sweep([*series("a", 2), single("y")])
    assert stage.asked == [["a1"], ["y"]]
    assert states == {"a1": "invalid", "a2": "invalid", "y": "pass"}


async def test_resumed_passes_are_asked_again_from_the_first(stage: Stage) -> None:
    stage.ends["a2"] = DeployError("decode-0 ended")
    await stage.sweep([single("x"), *series("a", 2), *series("b", 2)])
    stage.ends.clear()
    stage.asked.clear()
    states = await stage.sweep([single("x"), *series("a", 2), *series("b", 2)])
    assert stage.asked == [["a1", "a2"]]
    assert set(states.values()) == {"pass"}


async def test_a_cell_that_was_scored_by_another_version_is_judged_anew_when_resumed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "damage", lambda *_: None)
    await stage.sweep([single("a"), single("b")])
    now = get_scorer("gsm8k-strict").sha256
    for name, sha in (("a", "0" * 64), ("b", now)):
        result = stage.run.read_cell(name)
        assert result is not None
        task = TaskInfo("gsm-tiny", "1", "p", "gsm8k-strict", sha, 1)
        stage.run.write_cell(replace(result, task=task, accuracy=Accuracy("gsm8k-strict", 0.975, None)))
    stage.asked.clear()
    await stage.sweep([single("a"), single("b")])
    assert stage.asked == [["a"]]
    told = "a: judged anew, it was scored by another version of gsm8k-strict, which gave 0.975"
    assert told in stage.run.read_info().notes


async def test_a_red_cell_whose_repetition_is_missing_gets_it_when_resumed(stage: Stage) -> None:
    stage.ends["a"] = "regression"
    red = [replace(single("a"), rerun=True), single("b")]
    await stage.sweep([replace(red[0], rerun=False), red[1]])
    assert stage.asked == [["a"], ["b"]]
    stage.ends["a.rerun"] = "pass"
    stage.asked.clear()
    states = await stage.sweep(red)
    assert stage.asked == [["a.rerun"]]
    assert states == {"a": "regression", "a.rerun": "pass", "b": "pass"}
    stage.asked.clear()
    await stage.sweep(red)
    assert stage.asked == [], "and not a third time"


async def test_a_repetition_is_made_on_fresh_servers_whatever_was_asked_before_it(stage: Stage) -> None:
    stage.ends["b"] = "regression"
    wanted = [single("a"), single("b")]
    await stage.sweep(wanted)
    (stage.run.cell("a") / "cell.json").unlink()
    stage.asked.clear()
    await stage.sweep([wanted[0], replace(wanted[1], rerun=True)])
    assert stage.asked == [["a"], ["b.rerun"]]


def server(name: str, host: str | None, node: str | None = None) -> ServerPlan:
    return ServerPlan(name, "decode", ("/v/bin/vllm",), {}, 1, "http://x", "m", host=host, node=node)


@pytest.mark.parametrize(
    ("launcher", "servers", "asked", "vllm"),
    [
        ("local", [server("a", None)], [], "0.1 here"),
        ("ssh", [server("a", "10.0.0.1", "n1"), server("b", "n2")], ["n1", "n2"], "0.2 on n1, 0.3 on n2"),
        ("ssh", [server("a", None), server("b", "n2")], ["n2"], "0.1 here on this machine, 0.3 on n2"),
        ("ssh", [server("a", "n3")], ["n3"], None),
        ("local", [server("a", "n1")], [], None),
    ],
)
def test_engines_are_asked_where_they_run(
    monkeypatch: pytest.MonkeyPatch, launcher: str, servers: list[ServerPlan], asked: list[str], vllm: str | None
) -> None:
    """Never is what this machine has taken for another's."""
    seen: list[str] = []

    def there(_: object, machine: str, words: tuple[str, ...]) -> dict[str, str]:
        assert words == ("/v/bin/vllm",)
        seen.append(machine)
        return {"n1": {"vllm": "0.2"}, "n2": {"vllm": "0.3"}}.get(machine, {})

    monkeypatch.setattr(remote, "engine", there)
    monkeypatch.setattr(provenance, "engine", lambda _: {"vllm": "0.1 here"})
    engine_on.cache_clear()
    plan = DeploymentPlan("d", "pd", launcher, "m", None, tuple(servers))
    cell = CellPlan("a", {"engine": "e"}, "pd", "d", TASK, Gates())
    sweep = SweepPlan("s", "x", (plan,), (cell,), {"engines": {"e": {"venv": "/v"}, "unused": {"venv": "/w"}}})
    found = runs.engines_of(sweep)
    engine_on.cache_clear()
    assert found.keys() == {"e"} and found["e"]["vllm"] == vllm and seen == asked
    assert found["e"]["program"] == "/v/bin/vllm"
